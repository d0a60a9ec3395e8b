"""Bit-equal tokens and log-probabilities: every pair of values of every two axes, on tiny models of odd shapes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from pagoda.backends.texts import NativeTexts
from pagoda.engine.speculation import GuessingDrafter, NgramDrafter
from pagoda.engine.speculation.drafter import Drafter
from trees import TreeDrafter, known_outputs

from .axes import AXES, LONG, PARAMS, PROMPTS, SHORT
from .pairs import all_pairs
from .play import PLAIN_PAGE, Ask, Knowing, Line, Plain, Seen, opened, page_count, prompt, scheduler, through_engine
from .worlds import WORLDS, model_file

PAIRS = all_pairs(AXES)
FAMILIES = [name for name, world in WORLDS.items() if world.family or world.checkpoint]
SAMPLES = 4
"""Cases of each family and each kind of checkpoint: some of the others', all different."""
CASES = PAIRS + [
    PAIRS[(j + len(FAMILIES) * i) % len(PAIRS)] | {"world": name}
    for j, name in enumerate(FAMILIES)
    for i in range(SAMPLES)
]
MOST_TOKENS = 19
LENGTHS_OF_OUTPUT = [3 + 7 * j % (MOST_TOKENS - 2) for j in range(17)]
"""All different: rows drop out of a batch one by one, so that it passes every number of rows."""
SWITCHES = (1, 2, 3, 4, 7, 8, 9, 16, 17)
"""Numbers of rows around which kernels change."""
Baseline = Callable[[str, int, str, int], Line]


def asked(case: dict[str, Any]) -> list[tuple[int, str, int]]:
    """(prompt length, params, output length) of each request of a case: the first is the case's own, the second has a
    long prompt, so that there always is one in a batch, and the others go round the short ones.
    """
    kinds = list(PARAMS)
    at, kind = PROMPTS.index(case["prompt"]), kinds.index(case["params"])
    second = at % len(LONG)
    wanted = [(case["prompt"], case["params"]), (LONG[second], kinds[2 * second])]
    wanted += [(SHORT[(at + j) % len(SHORT)], kinds[(kind + j) % len(kinds)]) for j in range(2, 17)]
    return [(*wanted[j], LENGTHS_OF_OUTPUT[(at + j) % 17]) for j in range(case["batch"])]


def ask(world: str, length: int, params: str, tokens: int) -> Ask:
    return Ask(prompt(length, WORLDS[world].vocabulary), PARAMS[params], tokens)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    directory = tmp_path_factory.mktemp("tiny")
    return {name: model_file(directory, name) for name in WORLDS}


@pytest.fixture(scope="module")
def baseline(models: dict[str, Path]) -> Iterator[Baseline]:
    """Scalar, one thread, not fused, alone, and as long as any case asks for: shorter outputs are its beginnings."""
    longest = max(PROMPTS) + MOST_TOKENS
    contexts = {
        name: opened(
            models[name], world.kv_format, lambda _: -(-longest // PLAIN_PAGE), PLAIN_PAGE,
            activations=world.activations, isa="scalar", threads=1, fuse=False,
        )
        for name, world in WORLDS.items()
    }  # fmt: skip
    plain = {name: Plain(context.__enter__()) for name, context in contexts.items()}

    @cache
    def decode(world: str, length: int, params: str, choice: int) -> Line:
        return plain[world].decode(ask(world, length, params, MOST_TOKENS), choice)

    # Greedy choices are all the first one.
    yield lambda world, length, params, choice: decode(
        world, length, params, choice if PARAMS[params].temperature else 0
    )
    for context in contexts.values():
        context.__exit__(None, None, None)


@pytest.fixture(scope="module")
def seen() -> Seen:
    return Seen()


@pytest.mark.parametrize("case", CASES, ids=lambda case: ",".join(map(str, case.values())).replace(" ", "-"))
def test_matrix(case: dict[str, Any], models: dict[str, Path], baseline: Baseline, seen: Seen, tmp_path: Path) -> None:
    wanted, world = asked(case), WORLDS[case["world"]]
    asks = [ask(case["world"], *one) for one in wanted]

    def outputs(i: int, choice: int) -> tuple[int, ...]:
        length, params, tokens = wanted[i]
        return baseline(case["world"], length, params, choice)[0][:tokens]

    lives = 2 if case["prefixes"] == "restored from disk" else 1
    rounds = 2 if case["prefixes"] == "kept and met again" else 1
    got = []
    for _ in range(lives):
        drafters: dict[str, list[Drafter]] = {
            "none": [],
            "known": [Knowing(outputs, None)],
            "two of three right": [Knowing(outputs, 3)],
            "trees": [TreeDrafter(known_outputs(outputs), world.vocabulary)],
            "n-grams": [NgramDrafter(NativeTexts())],
            "first layer": [GuessingDrafter("self")],
            "a model of its own": [GuessingDrafter("draft")],
        }
        with opened(
            models[case["world"]], world.kv_format, page_count(case, asks), case["page_size"],
            activations=world.activations, isa=case["isa"], threads=case["threads"], fuse=case["fuse"],
            own=case["drafts"] == "a model of its own",
        ) as runner:  # fmt: skip
            got += through_engine(
                runner, asks, scheduler(case), seen, case["arrival"], rounds, drafters[case["drafts"]],
                tmp_path / "kv" if lives > 1 else None, case["policy"],
            )  # fmt: skip
    seen.cases += 1
    for i, (length, params, tokens) in enumerate(wanted):
        for choice in range(PARAMS[params].n):
            all_tokens, logprobs = baseline(case["world"], length, params, choice)
            want = all_tokens[:tokens], logprobs[:tokens]
            for lines in got:
                assert lines[i, choice] == want, f"request {i} ({length} tokens, {params}), choice {choice}"


def test_the_matrix_met_what_it_is_for(seen: Seen) -> None:
    """Runs after the cases: preemption, copied pages, hits, tokens in flight, drafts, every number of rows."""
    if seen.cases < len(CASES):
        pytest.skip(f"only {seen.cases} of {len(CASES)} cases ran before, in this process")
    assert seen.preemptions >= 10
    assert seen.cached > 1000
    assert seen.restored > 100
    assert seen.copies > 20
    assert seen.ahead > 100
    assert seen.accepted > 500
    assert seen.rejected > 200
    assert seen.paths > 100
    assert all(seen.rows[n] for n in SWITCHES), seen.rows


def test_outputs_differ_where_they_may(baseline: Baseline) -> None:
    """Else equality would prove nothing: worlds, prompts, params and choices each change the output."""
    name = next(iter(WORLDS))
    lines = [baseline(name, 16, params, 0)[0] for params in PARAMS]
    assert len(set(lines)) >= len(lines) - 1
    assert len({baseline(world, 16, "greedy", 0)[1] for world in WORLDS}) == len(WORLDS)
    assert len({baseline(name, length, "greedy", 0)[0] for length in PROMPTS}) == len(PROMPTS)
    assert len({baseline(name, 16, "three choices", choice)[0] for choice in range(3)}) == 3
