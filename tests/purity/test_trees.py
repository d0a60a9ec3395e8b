"""Trees of drafts, many of them: alone and among others, greedy and sampled, in every format of keys and values, with
windows and sinks, with pages for all paths and without. The bits are those of plain decoding.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pagoda.config import SchedulerConfig
from pagoda.types import SamplingParams
from trees import TreeDrafter, known_outputs

from .play import PLAIN_PAGE, Ask, Line, Plain, Seen, opened, prompt, through_engine
from .worlds import WORLDS, model_file

NAMES = (
    "grouped int16 f16", "narrow int16 f32", "grouped int16 int8", "wide int8 int4", "gemma2 int16 f16",
    "gpt-oss int16 f16",
)  # fmt: skip
TOKENS = 40
CASES = ((16, None, 2, 2, False), (4, None, 1, 1, False), (1, 64, 3, 2, False), (8, 17, 2, 1, True))
"""(page size, chunk, steps in flight, threads, whether pages are scarce)"""


def asks(world: str, temperature: float) -> list[Ask]:
    vocabulary = WORLDS[world].vocabulary
    rest: dict[str, Any] = {"temperature": temperature, "logprobs": 2}
    return [
        Ask(prompt(30, vocabulary), SamplingParams(seed=1, **rest), TOKENS),
        Ask(prompt(5, vocabulary), SamplingParams(seed=2, n=2, presence_penalty=0.5, **rest), TOKENS - 3),
        Ask(prompt(17, vocabulary), SamplingParams(seed=3, repetition_penalty=1.2, **rest), TOKENS - 9),
        Ask(prompt(252, vocabulary), SamplingParams(seed=4, frequency_penalty=0.7, **rest), TOKENS),
    ]


@pytest.fixture(scope="module")
def lines(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, float], dict[tuple[int, int], Line]]:
    """The baseline of each world and temperature, by (request, choice)."""
    directory = tmp_path_factory.mktemp("trees")
    found = {}
    for world in NAMES:
        path = model_file(directory, world)
        for temperature in (0.0, 0.8):
            wanted = asks(world, temperature)
            pages = max(ask.pages(PLAIN_PAGE) for ask in wanted)
            with opened(
                path, WORLDS[world].kv_format, lambda _, n=pages: n, PLAIN_PAGE, activations=WORLDS[world].activations
            ) as run:
                plain = Plain(run)
                found[world, temperature] = {
                    (i, choice): plain.decode(ask, choice)
                    for i, ask in enumerate(wanted)
                    for choice in range(ask.params.n)
                }
    return found


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("world", NAMES)
@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(map(str, case)))
def test_trees(
    case: tuple[Any, ...], world: str, temperature: float, lines: dict[Any, dict[tuple[int, int], Line]], tmp_path: Path
) -> None:
    page_size, chunk, in_flight, threads, scarce = case
    path, want = model_file(tmp_path, world), lines[world, temperature]
    mixed = asks(world, temperature)
    for together in (mixed[:1], mixed):
        each = [ask.pages(page_size) * ask.params.n for ask in together]
        pages = max(each) + 1 if scarce else 2 * sum(each) + 40
        seen = Seen()
        drafter = TreeDrafter(known_outputs(lambda i, choice: want[i, choice][0]), WORLDS[world].vocabulary, page_size)
        with opened(
            path, WORLDS[world].kv_format, lambda _, n=pages: n, page_size,
            activations=WORLDS[world].activations, threads=threads,
        ) as runner:  # fmt: skip
            config = SchedulerConfig(chunk=chunk, steps_in_flight=in_flight)
            (got,) = through_engine(runner, together, config, seen, drafters=[drafter])
        for (i, choice), line in got.items():
            tokens = together[i].tokens
            assert line == (want[i, choice][0][:tokens], want[i, choice][1][:tokens]), (i, choice)
        assert seen.accepted == drafter.right
        assert seen.rejected > 10
        assert drafter.cut if scarce else seen.paths > 10


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_a_stop_token_inside_a_path(
    temperature: float, lines: dict[Any, dict[tuple[int, int], Line]], tmp_path: Path
) -> None:
    """It ends the answer there, whatever else of the path was right."""
    world = NAMES[0]
    path, want = model_file(tmp_path, world), lines[world, temperature]
    ask = asks(world, temperature)[0]
    for at in range(3, TOKENS, 5):
        stop = want[0, 0][0][at]
        end = want[0, 0][0].index(stop) + 1
        params = SamplingParams(temperature=temperature, seed=1, logprobs=2, stop_token_ids=(stop,))
        drafter = TreeDrafter(known_outputs(lambda i, choice: want[i, choice][0]), WORLDS[world].vocabulary, at)
        with opened(path, "f16", lambda _: 80, 4, activations="int16", threads=1) as runner:
            stopped = Ask(ask.prompt, params, TOKENS)
            (got,) = through_engine(runner, [stopped], SchedulerConfig(), Seen(), drafters=[drafter])
        assert got == {(0, 0): (want[0, 0][0][:end], want[0, 0][1][:end])}
