"""Beams are a pure function too: whatever runs beside them, and however the machine is used, their lines are those of a
search that computes each line anew, alone, on one thread of the scalar build.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from pagoda.backends.cpu import isas
from pagoda.engine.beams import BeamSearch
from pagoda.plan import Chunk, SequenceStart, StepPlan, most_pages
from pagoda.runner.runner import Runner
from pagoda.types import SamplingParams

from .pairs import all_pairs
from .play import PLAIN_PAGE, Ask, Line, Seen, opened, prompt, scheduler, through_engine
from .worlds import WORLDS, model_file

PARAMS = {
    "two": SamplingParams(beams=2, n=1, logprobs=1),
    "five": SamplingParams(beams=5, n=3, logprobs=0, length_penalty=0.3),
    "early": SamplingParams(beams=4, n=4, early_stopping=True, stop_token_ids=tuple(range(0, 250, 9)), logprobs=3),
    "never": SamplingParams(beams=3, n=2, early_stopping="never", stop_token_ids=tuple(range(1, 250, 7)), logprobs=0),
}
BESIDE = SamplingParams(temperature=0.9, seed=4, n=2, logprobs=0)
TOKENS = 7
AXES: dict[str, tuple[Any, ...]] = {
    "world": ("grouped int16 f16", "grouped f32 f32", "narrow int16 int4", "large int8 int8", "gemma2 int16 f16"),
    "prompt": (1, 16, 33, 257),
    "params": tuple(PARAMS),
    "isa": isas(),
    "threads": (1, 2),
    "page_size": (1, 4, 16),
    "pages": ("plenty", "scarce"),
    "slots": (2, 4, 32),
    "chunk": (3, 16, 512),
    "steps_in_flight": (1, 2),
    "beside": (0, 1, 4),
    "prefixes": ("off", "kept", "kept and met again"),
}
CASES = all_pairs(AXES)


class Alone:
    """Beam search in which each line is computed from its first token on, in one chunk."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._sequence = 0

    def search(self, ask: Ask) -> list[Line]:
        params = ask.params
        assert params.beams is not None
        keep = params.beams * max(2, 1 + len(params.stop_token_ids))
        found = BeamSearch(
            params.beams, ask.tokens, keep, params.length_penalty, params.early_stopping, params.logprobs
        )
        while not found.done:
            for beam in found.beams:
                found.offer(beam.slot, self.candidates((*ask.prompt, *beam.tokens), ask, keep))
            found.advance(lambda tokens: tokens[-1] in params.stop_token_ids)
            found.check()
        return [(line.tokens, line.entries) for line in found.hypotheses[: params.n]]

    def candidates(self, tokens: tuple[int, ...], ask: Ask, keep: int) -> tuple[tuple[int, float], ...]:
        self._sequence += 1
        start = SequenceStart(self._sequence, ask.prompt, ask.request("").params, 0, keep)
        pages = tuple(range(-(-len(tokens) // PLAIN_PAGE)))
        ended = (self._sequence - 1,) if self._sequence > 1 else ()
        tables = (pages,) * len(self._runner.capacity.pages)
        plan = StepPlan(1, (Chunk(self._sequence, 0, tokens, tables, True),), (start,), (), ended)
        (sampled,) = self._runner.finish(self._runner.submit(plan)).sampled
        assert sampled.logprob is not None
        return sampled.logprob.top


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    directory = tmp_path_factory.mktemp("beams")
    return {name: model_file(directory, name) for name in AXES["world"]}


def ask(world: str, length: int, params: str) -> Ask:
    return Ask(prompt(length, WORLDS[world].vocabulary), PARAMS[params], TOKENS)


@pytest.fixture(scope="module")
def alone(models: dict[str, Path]) -> Iterator[Any]:
    longest = max(AXES["prompt"]) + TOKENS
    contexts = {
        name: opened(
            path, WORLDS[name].kv_format, lambda _: -(-longest // PLAIN_PAGE), PLAIN_PAGE,
            activations=WORLDS[name].activations, isa="scalar", threads=1, fuse=False,
        )
        for name, path in models.items()
    }  # fmt: skip
    searches = {name: Alone(context.__enter__()) for name, context in contexts.items()}
    yield cache(lambda world, length, params: searches[world].search(ask(world, length, params)))
    for context in contexts.values():
        context.__exit__(None, None, None)


@pytest.fixture(scope="module")
def seen() -> Seen:
    return Seen()


@pytest.mark.parametrize("case", CASES, ids=lambda case: ",".join(map(str, case.values())).replace(" ", "-"))
def test_beams(case: dict[str, Any], models: dict[str, Path], alone: Any, seen: Seen) -> None:
    world = WORLDS[case["world"]]
    wanted = ask(case["world"], case["prompt"], case["params"])
    others = [Ask(prompt(20 + i, world.vocabulary), BESIDE, 2 + i) for i in range(case["beside"])]
    size, rows, times = case["page_size"], scheduler(case).rows, 1 if case["pages"] == "scarce" else 16
    longest = max(len(one.prompt) + one.tokens for one in [wanted, *others])

    def pages(window: int | None) -> int:
        return most_pages(window, longest, rows, size) * times

    with opened(
        models[case["world"]], world.kv_format, pages, size,
        activations=world.activations, isa=case["isa"], threads=case["threads"],
    ) as runner:  # fmt: skip
        rounds = 2 if case["prefixes"] == "kept and met again" else 1
        config = scheduler(case, max_num_seqs=case["slots"])
        got = through_engine(runner, [wanted, *others], config, seen, rounds=rounds)
    seen.cases += 1
    lines = alone(case["world"], case["prompt"], case["params"])
    for answer in got:
        assert [answer[0, index] for index in range(wanted.params.n)] == lines


def test_the_cases_met_what_they_are_for(seen: Seen, alone: Any) -> None:
    """Runs after the cases: beams lost their pages, copied and found some, and lines differ where they may."""
    if seen.cases < len(CASES):
        pytest.skip(f"only {seen.cases} of {len(CASES)} cases ran before, in this process")
    assert seen.preemptions >= 10
    assert seen.copies > 100
    assert seen.cached > 100
    name = AXES["world"][0]
    assert len({tuple(alone(name, 16, params)) for params in PARAMS}) == len(PARAMS)
    assert any(len(tokens) < TOKENS for params in PARAMS for tokens, _ in alone(name, 16, params))
