"""From a plan to the arrays of one step. Knows sequences by number; knows nothing of requests or text."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from pagoda.backends.ops import Draw, Ints, Step
from pagoda.plan import LAST, Chunk, SequenceStart, StepPlan
from pagoda.types import SamplingParams


@dataclass(slots=True)
class _Known:
    """What is kept of a sequence between plans."""

    slot: int
    params: SamplingParams
    choice: int
    logprobs: int
    """How many likeliest tokens to report with a sample; -1: none, and no log-probability."""
    tables: dict[int, tuple[tuple[int, ...], Ints]] = field(default_factory=dict)
    """Per KV group, the plan's table and the array made of it: a table is the same object until it changes."""


class Batcher:
    """Turns plans, in order, into steps and draws."""

    def __init__(self, groups: int) -> None:
        self._groups = groups
        self._known: dict[int, _Known] = {}
        self._free: list[int] = []
        self._slots = 0

    def batch(self, plan: StepPlan) -> tuple[Step, list[Draw]]:
        """The step of one plan, and a draw for each chunk that samples, in the plan's order."""
        starts = tuple(self._start(start) for start in plan.starts)
        chunks = [(self._known[c.sequence], c) for c in plan.chunks]
        counts = [len(c.tokens) for c in plan.chunks]
        ends = np.cumsum(counts, dtype=np.int32)
        step = Step(
            ids=np.array([t for c in plan.chunks for t in c.tokens], np.int32),
            positions=_positions(plan.chunks),
            sequences=np.repeat(np.arange(len(counts), dtype=np.int32), counts),
            tables=tuple(self._table(chunks, group) for group in range(self._groups)),
            sampled=(ends - 1)[[c.samples for c in plan.chunks]],
            slots=np.array([known.slot for known, _ in chunks], np.int32),
            copies=tuple((c.group, c.source, c.target, c.slots) for c in plan.copies),
            starts=starts,
        )
        draws = [_draw(known, chunk) for known, chunk in chunks if chunk.samples]
        for sequence in plan.ends:
            self._free.append(self._known.pop(sequence).slot)
        return step, draws

    def check(self) -> None:
        """Assert that every slot is free or has one sequence."""
        taken = [known.slot for known in self._known.values()]
        assert sorted(taken + self._free) == list(range(self._slots)), (taken, self._free, self._slots)

    def _start(self, start: SequenceStart) -> tuple[int, Ints]:
        if self._free:
            slot = self._free.pop()
        else:
            slot, self._slots = self._slots, self._slots + 1
        asked = -1 if start.params.logprobs is None else start.params.logprobs
        self._known[start.sequence] = _Known(slot, start.params, start.choice, max(asked, start.candidates))
        return slot, np.array(start.prompt, np.int32)

    def _table(self, chunks: list[tuple[_Known, Chunk]], group: int) -> Ints:
        rows = []
        for known, chunk in chunks:
            pages = chunk.pages[group]
            kept = known.tables.get(group)
            if kept is None or kept[0] is not pages:
                kept = known.tables[group] = (pages, np.array(pages, np.int32))
            rows.append(kept[1])
        table = np.zeros((len(rows), max(map(len, rows))), np.int32)
        for row, pages_of_one in zip(table, rows, strict=True):
            row[: len(pages_of_one)] = pages_of_one
        return table


def _positions(chunks: Iterable[Chunk]) -> Ints:
    return np.array([p for c in chunks for p in range(c.start, c.end)], np.int32)


def _draw(known: _Known, chunk: Chunk) -> Draw:
    p = known.params
    assert p.seed is not None, "a request's seed is drawn when it is admitted"
    return Draw(
        slot=known.slot,
        seed=p.seed,
        choice=known.choice,
        position=chunk.end,
        temperature=p.temperature,
        top_p=p.top_p,
        min_p=p.min_p,
        repetition=p.repetition_penalty,
        frequency=p.frequency_penalty,
        presence=p.presence_penalty,
        top_k=p.top_k,
        logprobs=known.logprobs,
    )


assert LAST == -1, "Step.ids takes -1 for the token sampled last, as plans do"
