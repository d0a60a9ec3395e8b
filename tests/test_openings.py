"""Warming: prompts that are computed and pinned before anyone asks, on a real (tiny) model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pagoda import LLM, InvalidConfig, SamplingParams
from pagoda.explain import explain_prefix
from pagoda.openings import read_openings
from pagoda.plan import Capacity
from pagoda.types import CacheCause, CacheExplanation
from server.fakes import ByteTokenizer
from tiny import tiny_model

SYSTEM = {"role": "system", "content": "You are the support desk of a small shop that sells pagodas."}
ONE = SamplingParams(max_tokens=1, temperature=0)
OPTIONS: Any = {"threads": 1, "kv_memory": 2**19}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tiny_model(tmp_path_factory.mktemp("tiny"), seed=4))


def written(directory: Path, *lines: object) -> str:
    path = directory / "warm.jsonl"
    path.write_text("\n".join(each if isinstance(each, str) else json.dumps(each) for each in lines))
    return str(path)


def test_the_first_user_has_what_the_hundredth_has(model: str, tmp_path: Path) -> None:
    warm = written(tmp_path, {"name": "desk", "messages": [SYSTEM]}, "", {"text": "The handbook. Chapter 1."})
    with LLM(model, warm=warm, **OPTIONS) as llm:
        pins = llm._engine.list_pins()
        assert [(pin.name, pin.shared, pin.owner) for pin in pins] == [("desk", True, ""), ("", True, "")]
        found = []
        for user in ("Zed", *(f"user {i}" for i in range(98)), "Quo"):
            asked = [SYSTEM, {"role": "user", "content": f"{user} asks for the price"}]
            found.append(llm.chat(asked, ONE).usage.cached_tokens)
        assert len(SYSTEM["content"]) / 2 < pins[0].tokens, "all of the system prompt"
        assert found[0] == found[99] == pins[0].tokens
        whole = llm.generate("The handbook. Chapter 1. It begins", ONE)[0]
        assert whole.usage.cached_tokens == pins[1].tokens
        why = llm.explain(whole)
        assert why is not None
        assert (why.matched_tokens, why.kept) == (pins[1].tokens, None)


def test_warming_changes_no_answer(model: str, tmp_path: Path) -> None:
    """llama.cpp#28527, #4902: a cached repeat changes the answer at temperature 0."""
    asked, params = (
        [SYSTEM, {"role": "user", "content": "hi"}],
        SamplingParams(max_tokens=12, temperature=0, logprobs=2),
    )
    with LLM(model, prefix_cache=False, **OPTIONS) as cold:
        expected = cold.chat(asked, params).choices[0]
    with LLM(model, warm=written(tmp_path, {"messages": [SYSTEM]}), **OPTIONS) as warm:
        got = warm.chat(asked, params)
        assert got.usage.cached_tokens == warm._engine.list_pins()[0].tokens
        assert (got.token_ids, got.choices[0].logprobs) == (expected.token_ids, expected.logprobs)


GOOD = {"text": "fine"}


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ([GOOD, "{"], "line 2: not valid JSON: Expecting property name enclosed in double quotes at column 2"),
        ([GOOD, "", "[]"], "line 3: an opening is an object with one of messages, text, token_ids"),
        ([{"txt": "x"}], "line 1: an opening has no field 'txt'"),
        ([{"text": "x", "shared": True}], "line 1: an opening has no field 'shared'"),
        ([GOOD, {"messages": [{"role": "wizard", "content": "x"}]}], "line 2: messages[0].role must be one of"),
        ([GOOD, {"token_ids": [5000]}], "line 2: prompt: token ids run from 0 to 319, got 5000"),
        ([GOOD, {"text": "word " * 600}], "line 2: the prompt has"),
        ([{"text": f"{i} " + "ab " * 90} for i in range(9)], "tokens to pin need"),
    ],
)
def test_a_bad_file_ends_the_start_and_names_the_line(model: str, tmp_path: Path, lines: Any, words: str) -> None:
    warm = written(tmp_path, *lines)
    with pytest.raises(InvalidConfig) as caught:
        LLM(model, warm=warm, **OPTIONS)
    assert str(caught.value).startswith(f"{warm}, line ")
    assert words in str(caught.value)


def test_a_file_that_is_not_there(model: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig, match=r"cannot read the openings in .*nowhere: No such file"):
        LLM(model, warm=str(tmp_path / "nowhere"), **OPTIONS)
    with pytest.raises(InvalidConfig, match="without prefix_cache nothing can be kept"):
        LLM(model, warm="x", prefix_cache=False, **OPTIONS)
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    with pytest.raises(InvalidConfig, match="cannot read the openings"):
        read_openings(tmp_path / "binary")


@pytest.mark.parametrize("line", ["[" * 100_000, '{"text": "\\ud800"}', '{"text": NaN}'])
def test_hostile_lines(model: str, tmp_path: Path, line: str) -> None:
    with pytest.raises(InvalidConfig, match="line 1: "):
        LLM(model, warm=written(tmp_path, line), **OPTIONS)


def test_long_prompts_are_cut_in_explanations() -> None:
    prompt = ByteTokenizer().encode_prompt("a" * 100 + "b" * 100)
    pages_of = Capacity((9, 9), 16, 512, 256, "any", windows=(None, 40)).pages_of
    cache = CacheExplanation(100, CacheCause.DIFFERENT, tuple(b"cd"))
    why = explain_prefix(ByteTokenizer(), prompt, cache, pages_of, 0.5)
    assert why.prompt == "..." + "a" * 48 + "|" + "b" * 12 + "..."
    assert why.kept == "..." + "a" * 48 + "|cd"
    assert (why.pages, why.saved_s, why.matched_characters) == (7 + 4, 50.0, 100)
