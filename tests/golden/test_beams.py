"""Beam search finds the lines that transformers finds: from the golden file, and afresh where torch is installed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from make_beams import GOLDEN, SHAPE, cases, searched

from pagoda.llm import LLM
from pagoda.types import FinishReason, SamplingParams
from tiny import tiny_model


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory):
    """In float32 from end to end, as transformers is."""
    path = tiny_model(tmp_path_factory.mktemp("beams"), **SHAPE)
    with LLM(str(path), activations="f32", kv_format="f32", kv_memory=2**22, threads=1, max_model_len=128) as llm:
        yield llm


def ask(case):
    return SamplingParams(
        max_tokens=case["max_tokens"], beams=case["beams"], n=case["n"], length_penalty=case["length_penalty"],
        early_stopping=case["early_stopping"], stop_token_ids=tuple(case["stops"]), ignore_eos=True, logprobs=0,
    )  # fmt: skip


def compare(llm, wanted):
    completions = llm.generate([case["prompt"] for case in wanted], [ask(case) for case in wanted])
    for case, completion in zip(wanted, completions, strict=True):
        assert [list(choice.token_ids) for choice in completion.choices] == case["sequences"], case
        for choice, score in zip(completion.choices, case["scores"], strict=True):
            total = sum(entry.logprob for entry in choice.logprobs)
            assert total / len(choice.token_ids) ** case["length_penalty"] == pytest.approx(score, rel=1e-5, abs=2e-4)
            ended = choice.token_ids[-1] in case["stops"]
            assert choice.finish_reason is (FinishReason.STOP if ended else FinishReason.LENGTH)
            assert choice.completion_tokens == len(choice.token_ids)


def test_the_lines_are_those_of_transformers(llm):
    """All at once, so that beams of many requests share steps and pages."""
    golden = json.loads(GOLDEN.read_text())["cases"]
    assert len({case["early_stopping"] for case in golden}) == 3
    assert sum(len(line) < case["max_tokens"] for case in golden for line in case["sequences"]) > 30
    compare(llm, golden)


def test_the_lines_are_those_of_transformers_afresh(llm, tmp_path: Path):
    pytest.importorskip("torch")
    wanted = cases(24, seed=2)
    found = searched(tiny_model(tmp_path, **SHAPE), wanted)
    compare(llm, [case | lines for case, lines in zip(wanted, found, strict=True)])
