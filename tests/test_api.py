"""The public names, and `LLM` over the echo engine."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest

import pagoda
from cli.echo_pagoda import open_echo
from pagoda import LLM, EngineDied, FinishReason, InvalidConfig, InvalidRequest, PromptTooLong, SamplingParams
from pagoda.errors import PagodaError
from pagoda.llm import EngineOptions, engine_config

PARAMS = SamplingParams(max_tokens=50, seed=1)


@pytest.fixture
def llm(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.setattr("pagoda.llm.open_engine", open_echo())
    with LLM("echo") as made:
        yield made
        engine = made._engine
        engine.check()
        assert (engine.health().running, engine.health().waiting) == (0, 0)


def test_all_is_complete() -> None:
    """`__all__` is sorted, holds every public name, and every error there is."""
    public = {
        name
        for name, value in vars(pagoda).items()
        if not name.startswith("_") and not isinstance(value, ModuleType) and name not in ("annotations", "Any")
    }
    assert public - {"TYPE_CHECKING"} <= set(pagoda.__all__)
    for name in pagoda.__all__:
        assert getattr(pagoda, name) is not None
    assert pagoda.__all__ == sorted(pagoda.__all__, key=lambda name: (name != "LLM", name.startswith("_"), name))

    def tree(kind: type[PagodaError]) -> set[str]:
        return {kind.__name__}.union(*map(tree, kind.__subclasses__()))

    assert {name for name in tree(PagodaError) if hasattr(pagoda.errors, name)} <= set(pagoda.__all__)
    with pytest.raises(AttributeError, match="nonsense"):
        pagoda.nonsense  # noqa: B018


def test_import_is_light() -> None:
    script = "import sys, pagoda; print(sorted({'numpy', 'tokenizers', 'msgspec', 'asyncio'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_generate(llm: LLM) -> None:
    one, two = llm.generate(["one", [116, 119, 111]], PARAMS)
    assert (one.text, two.text) == ("[0]one", "[0]two")
    assert (one.finish_reason, one.seed, one.system_fingerprint) == (FinishReason.STOP, 1, "fp_echo")
    assert one.token_ids == (*b"[0]one", 256)
    assert (one.usage.prompt_tokens, one.usage.completion_tokens, one.usage.total_tokens) == (3, 7, 10)
    timings = one.choices[0].timings
    assert timings is not None
    assert one.choices[0].tpot == (timings.total - timings.first_token) / 6


@pytest.mark.parametrize("prompt", ["hi", [104, 105], (104, 105), range(104, 106)])
def test_one_prompt(llm: LLM, prompt: Any) -> None:
    (answer,) = llm.generate(prompt, PARAMS)
    assert answer.text == "[0]hi"


def test_many_in_order(llm: LLM) -> None:
    prompts = [f"number {number}" for number in range(100)]
    assert [each.text for each in llm.generate(prompts, PARAMS)] == [f"[0]{prompt}" for prompt in prompts]
    assert llm.generate([]) == []


def test_params_for_each(llm: LLM) -> None:
    params = [SamplingParams(max_tokens=4, n=2, logprobs=1), SamplingParams(max_tokens=5)]
    one, two = llm.generate(["abc", "def"], params)
    assert [choice.text for choice in one.choices] == ["[0]a", "[1]a"]
    assert [len(choice.logprobs) for choice in one.choices] == [4, 4]
    assert (two.text, two.choices[0].logprobs) == ("[0]de", ())
    with pytest.raises(InvalidRequest, match="2 prompts and 1 params"):
        llm.generate(["a", "b"], [PARAMS])


def test_drawn_seeds_differ(llm: LLM) -> None:
    seeds = {each.seed for each in llm.generate(["a"] * 8, SamplingParams(max_tokens=1))}
    assert len(seeds) > 1


@pytest.mark.parametrize("prompt", ["", [], [999], [True], [1.5], ["a", 1], [["a"]], [None]])
def test_bad_prompts(llm: LLM, prompt: Any) -> None:
    with pytest.raises(InvalidRequest):
        llm.generate([prompt], PARAMS)


def test_nothing_is_generated_if_one_is_bad(llm: LLM) -> None:
    with pytest.raises(PromptTooLong):
        llm.generate(["fine", "x" * 600], PARAMS)
    assert llm._engine.cancelled == []  # type: ignore[attr-defined]


def test_chat(llm: LLM) -> None:
    messages = [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]
    assert llm.chat(messages, PARAMS).text == "[0]system: s\nuser: u\n"
    with pytest.raises(InvalidRequest):
        llm.chat([], PARAMS)


@pytest.mark.parametrize("prompt", ["hi ☃", list("hi ☃".encode())])
def test_stream(llm: LLM, prompt: Any) -> None:
    with llm.stream(prompt, PARAMS) as events:
        assert events.request.params.seed == 1
        text = "".join(event.text for event in events)
        assert text == events.completion().text == "[0]hi ☃"


def test_stream_of_a_conversation(llm: LLM) -> None:
    events = llm.stream([{"role": "user", "content": "u"}], PARAMS)
    assert "".join(event.text for event in events) == "[0]user: u\n"
    with pytest.raises(InvalidRequest):
        llm.stream([{"role": "user", "content": "u"}, "v"], PARAMS)  # type: ignore[list-item]


def test_leaving_a_stream_cancels(llm: LLM) -> None:
    with llm.stream("x" * 100, SamplingParams(n=3)) as events:
        next(events)
    assert len(llm._engine.cancelled) == 1  # type: ignore[attr-defined]


def test_agenerate_and_astream(llm: LLM) -> None:
    async def both() -> tuple[list[str], str]:
        whole = llm.agenerate(["a", "b"], PARAMS)
        streamed = [event.text async for event in llm.astream("c", PARAMS)]
        return [each.text for each in await whole], "".join(streamed)

    assert asyncio.run(both()) == (["[0]a", "[0]b"], "[0]c")


def test_cancelling_agenerate_cancels(llm: LLM) -> None:
    async def leave() -> None:
        llm._engine.hold()  # type: ignore[attr-defined]
        task = asyncio.ensure_future(llm.agenerate(["a", "b"], PARAMS))
        while llm._engine.health().waiting < 2:
            await asyncio.sleep(0.001)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.sleep(0.01)

    asyncio.run(leave())
    assert len(llm._engine.cancelled) == 2  # type: ignore[attr-defined]
    llm._engine.release()  # type: ignore[attr-defined]


def test_leaving_astream_cancels(llm: LLM) -> None:
    async def leave() -> None:
        events = llm.astream("x" * 100)
        await anext(events)
        await events.aclose()

    asyncio.run(leave())
    assert len(llm._engine.cancelled) == 1  # type: ignore[attr-defined]


def test_death_is_raised(llm: LLM) -> None:
    llm._engine.hold()  # type: ignore[attr-defined]
    events = llm.stream("x", PARAMS)
    llm._engine.kill("gone")  # type: ignore[attr-defined]
    with pytest.raises(EngineDied, match="gone"):
        list(events)
    with pytest.raises(EngineDied, match="gone"):
        llm.generate("x")


def test_closing_twice(llm: LLM) -> None:
    llm.close()
    llm.close()
    with pytest.raises(EngineDied):
        llm.generate("x")


def test_options() -> None:
    config = engine_config("m", kv_format="f32", threads=3, chunk=64)
    assert (config.model.model, config.model.kv_format, config.machine.threads) == ("m", "f32", 3)
    assert config.scheduler.chunk == 64
    with pytest.raises(InvalidConfig, match="no option 'nope'"):
        engine_config("m", nope=1)  # type: ignore[call-arg]
    with pytest.raises(InvalidConfig, match="page_size"):
        engine_config("m", page_size=7)


def test_options_are_the_configuration() -> None:
    """A field added to the configuration must be an option too."""
    from dataclasses import fields

    from pagoda.config import MachineConfig, ModelConfig, SchedulerConfig

    names = {each.name for part in (ModelConfig, MachineConfig, SchedulerConfig) for each in fields(part)}
    assert set(EngineOptions.__annotations__) == names - {"model"}
