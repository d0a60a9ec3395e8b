"""A sample of the matrix on the real model: its shapes, its depth, its vocabulary."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from pagoda.backends.cpu import isas
from pagoda.types import SamplingParams
from trees import TreeDrafter, known_outputs

from .play import PLAIN_PAGE, Ask, Line, Plain, Seen, opened, page_count, prompt, scheduler, through_engine

pytestmark = pytest.mark.model
VOCABULARY = 49_152
ASKS = (
    Ask(prompt(17, VOCABULARY), SamplingParams(temperature=0, logprobs=5), 4),
    Ask(prompt(33, VOCABULARY), SamplingParams(temperature=0.9, seed=1, top_p=0.95, logprobs=0), 10),
    Ask(prompt(250, VOCABULARY), SamplingParams(temperature=1.2, seed=2, top_k=40, min_p=0.01, logprobs=1), 12),
    Ask(prompt(47, VOCABULARY), SamplingParams(seed=3, n=2, logprobs=2, repetition_penalty=1.2), 8),
    Ask(prompt(1, VOCABULARY), SamplingParams(temperature=0, frequency_penalty=0.5, logprobs=0), 9),
)
COLUMNS = (
    "asks", "isa", "threads", "fuse", "page_size", "pages", "chunk", "steps_in_flight", "arrival", "prefixes", "policy",
    "drafts",
)  # fmt: skip
ROWS = (
    ((0,), "scalar", 2, True, 4, "plenty", 16, 1, "together", "off", "no targets", "none"),
    ((0, 1, 2, 3, 4), isas()[0], 2, True, 16, "plenty", None, 2, "together", "kept and met again", "tenants", "trees"),
    ((0, 1, 3, 4), isas()[-2:][0], 3, False, 1, "scarce", 17, 3, "one by one", "off", "no targets", "none"),
    ((2, 3), isas()[0], 1, True, 32, "plenty", 64, 1, "together", "kept", "targets and priorities", "none"),
    ((0, 1, 2, 3), isas()[0], 2, True, 16, "plenty", 512, 2, "together", "restored from disk", "no targets", "trees"),
)
CASES = [dict(zip(COLUMNS, row, strict=True)) for row in ROWS]


@pytest.fixture(scope="module")
def baseline(smollm2_path: Path) -> Iterator[Callable[[Ask, int], Line]]:
    """Alone, one thread, not fused; in the best instruction set, as scalar takes a fifth of a second for a token: it is
    held against this line, not the other way round.
    """
    pages = max(ask.pages(PLAIN_PAGE) for ask in ASKS)
    with opened(smollm2_path, "f16", lambda _: pages, PLAIN_PAGE, activations="int16", threads=1, fuse=False) as runner:
        yield cache(Plain(runner).decode)


@pytest.mark.parametrize("case", CASES, ids=lambda case: "{isa},{threads},{chunk},{page_size},{pages}".format(**case))
def test_sample(case: dict[str, Any], smollm2_path: Path, baseline: Callable[[Ask, int], Line], tmp_path: Path) -> None:
    asks, seen = [ASKS[i] for i in case["asks"]], Seen()
    rounds = 2 if case["prefixes"] == "kept and met again" else 1
    lives = 2 if case["prefixes"] == "restored from disk" else 1
    want = {(i, choice): baseline(ask, choice) for i, ask in enumerate(asks) for choice in range(ask.params.n)}
    trees = TreeDrafter(known_outputs(lambda i, choice: want[i, choice][0]), VOCABULARY)
    got = []
    for _ in range(lives):
        with opened(
            smollm2_path, "f16", page_count(case, asks), case["page_size"],
            activations="int16", isa=case["isa"], threads=case["threads"], fuse=case["fuse"],
        ) as runner:  # fmt: skip
            kv_dir = tmp_path / "kv" if lives > 1 else None
            got += through_engine(
                runner, asks, scheduler(case), seen, case["arrival"], rounds,
                [trees] if case["drafts"] == "trees" else [], kv_dir, case["policy"],
            )  # fmt: skip
    assert case["pages"] == "plenty" or seen.preemptions
    assert rounds == 1 or seen.cached
    assert got == [want] * rounds * lives
    assert lives == 1 or seen.restored
    assert case["drafts"] == "none" or seen.paths
