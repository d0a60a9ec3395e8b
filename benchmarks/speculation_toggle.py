"""What speculation costs where it brings nothing: turned on and off every few steps while the same answers are written.

Part of `benchmarks/speculation.py`. A block is some steps with speculation or without; four blocks, without, with,
with, without, give one ratio of tokens per second, in which whatever drifts slowly cancels out. The first steps of a
block, and blocks in which a sequence began or ended, do not count.
"""

from __future__ import annotations

import math
import random
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from speculation_tasks import Bench

from pagoda.engine import Engine, iterate
from pagoda.engine.request import Sequence as Underway
from pagoda.engine.speculation import Controller
from pagoda.engine.speculation.drafter import NO_GUESS, Drafter, Guess
from pagoda.plan import StepPlan, StepResult
from pagoda.types import TokenEvent

BLOCK = 10
"""Steps."""
SKIPPED = 3
"""Of each block: plans made before it, and what was not looked at meanwhile."""
ORDER = (False, True, True, False)
RESAMPLED = 4000


@dataclass
class Block:
    """Some steps in a row."""

    on: bool
    steps: int = 0
    tokens: int = 0
    seconds: float = 0.0
    whole: bool = True


class Toggled(Controller):
    """The controller, told every few steps to pause or to go on."""

    def __init__(self, drafters: Sequence[Drafter]) -> None:
        super().__init__(drafters)
        self.batch = 0
        self.blocks: list[Block] = []
        self._last = 0.0
        self.nobody = Controller()

    def begin(self, batch: int) -> None:
        """A new batch of so many sequences."""
        self.batch, self.blocks = batch, [Block(ORDER[0])]

    def open(self, singles: Sequence[Underway], rows: int, alone: bool, within: float = math.inf) -> bool:
        """In a block without: as a controller that has nobody to ask."""
        return (super() if self.blocks[-1].on else self.nobody).open(singles, rows, alone, within)

    def draft(self, sequence: Underway) -> tuple[str, Guess]:
        """In a block without, none."""
        return super().draft(sequence) if self.blocks[-1].on else ("", NO_GUESS)

    def finished(self, plan: StepPlan, result: StepResult, gap: float | None, ahead: bool) -> None:
        """Count it to its block."""
        block = self.blocks[-1]
        if block.on:
            super().finished(plan, result, gap, ahead)
        now = time.perf_counter()
        block.steps += 1
        block.whole &= len(plan.chunks) == self.batch and plan.rows == len(plan.chunks) + plan.drafts
        if block.steps > SKIPPED:
            block.tokens += len(result.sampled)
            block.seconds += now - self._last
        self._last = now
        if block.steps == BLOCK:
            self.blocks.append(Block(ORDER[len(self.blocks) % 4]))


TRIES = 20
"""Rounds of answers without one ratio after which there will be none."""


@dataclass
class Ratios:
    """Of tokens per second, with against without."""

    values: list[float] = field(default_factory=list)

    def add(self, blocks: Sequence[Block]) -> None:
        """Four at a time."""
        for i in range(0, len(blocks) - 3, 4):
            four = blocks[i : i + 4]
            if all(block.whole and block.steps == BLOCK for block in four):
                self.values.append(rate(four, True) / rate(four, False))

    def interval(self) -> tuple[float, float]:
        """The median's 95 % interval, by bootstrap."""
        rng = random.Random(0)
        n = len(self.values)
        medians = sorted(statistics.median(rng.choices(self.values, k=n)) for _ in range(RESAMPLED))
        return medians[round(0.025 * RESAMPLED)], medians[round(0.975 * RESAMPLED) - 1]


def rate(blocks: Sequence[Block], on: bool) -> float:
    """Tokens per second of the blocks with speculation, or of those without."""
    chosen = [block for block in blocks if block.on == on]
    return sum(block.tokens for block in chosen) / sum(block.seconds for block in chosen)


def toggle(
    engine: Engine,
    policy: Toggled,
    bench: Bench,
    task: str,
    batch: int,
    temperature: float,
    seconds: float,
    tokens: int,
) -> dict[str, Any]:
    """One batch size, for so many seconds or a little more."""
    ratios, ends = Ratios(), time.perf_counter() + seconds
    accepted = rejected = first = 0
    while not ratios.values or time.perf_counter() < ends:
        policy.begin(batch)
        for event in iterate(engine, bench.requests(task, batch, temperature, tokens, first)):
            accepted, rejected = counted(event, accepted, rejected)
        ratios.add(policy.blocks)
        first += batch
        if not ratios.values and first >= TRIES * batch:
            raise SystemExit(f"answers of {tokens} tokens are over before speculation was on and off: raise --tokens")
    low, high = ratios.interval()
    return {
        "task": task,
        "batch": batch,
        "temperature": temperature,
        "ratios": len(ratios.values),
        "median_ratio": round(statistics.median(ratios.values), 4),
        "interval": [round(low, 4), round(high, 4)],
        "accepted": accepted,
        "rejected": rejected,
    }


def counted(event: TokenEvent, accepted: int, rejected: int) -> tuple[int, int]:
    """With the drafts of one that ended."""
    if event.finish is None:
        return accepted, rejected
    return accepted + event.accepted_drafts, rejected + event.rejected_drafts
