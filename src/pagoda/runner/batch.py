"""From a plan to the arrays of one step. Knows sequences by number; knows nothing of requests or text.

If the drafter has a model of its own, its KV groups come after the model's, in tables and copies.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from pagoda.backends.ops import Draw, Ints, Step
from pagoda.plan import GUESS, LAST, Chunk, SequenceStart, StepPlan, tree_paths
from pagoda.types import SamplingParams


@dataclass(slots=True)
class Known:
    """What is kept of a sequence between plans."""

    slot: int
    prompt: tuple[int, ...]
    params: SamplingParams
    choice: int
    logprobs: int
    """How many likeliest tokens to report with a sample; -1: none, and no log-probability."""
    guesses: int | None = None
    """Slot of what the runner's own drafter guesses for it, from the first time on."""
    fed: int = 0
    """Tokens whose KV the drafter's own model has computed, if it has one."""
    tables: dict[int, tuple[tuple[int, ...], Ints]] = field(default_factory=dict)
    """Per KV group, the plan's table and the array made of it: a table is the same object until it changes."""

    def slots(self) -> tuple[int, ...]:
        """All that it has taken."""
        return (self.slot,) if self.guesses is None else (self.slot, self.guesses)


class Batcher:
    """Turns plans, in order, into steps and draws."""

    def __init__(self, groups: int) -> None:
        self._groups = groups
        self.known: dict[int, Known] = {}
        """Of each sequence."""
        self._free: list[int] = []
        self._slots = 0

    def batch(self, plan: StepPlan) -> tuple[Step, list[Draw]]:
        """The step of one plan, and a draw for each chunk that samples, in the plan's order, with its drafts."""
        starts = tuple(self._start(start) for start in plan.starts)
        chunks = [(self.known[c.sequence], c) for c in plan.chunks]
        for known, chunk in chunks:
            known.fed = min(known.fed, chunk.start)  # what comes after is written over, or was never right
        guesses = any(GUESS in c.tokens for c in plan.chunks)
        trees = any(c.paths for c in plan.chunks)
        lines = [line for c in plan.chunks for line in (_lines(c) if c.paths else (_positions(c),))]
        owners = [known for known, c in chunks for _ in range(1 + len(c.paths))] if trees else [k for k, _ in chunks]
        ends = np.cumsum([len(c.tokens) for c in plan.chunks], dtype=np.int32).tolist()
        step = Step(
            ids=np.array([t for c in plan.chunks for t in (_numbered(c) if guesses else c.tokens)], np.int32),
            positions=np.array([p for line in lines for p in line], np.int32),
            sequences=np.repeat(np.arange(len(lines), dtype=np.int32), list(map(len, lines))),
            tables=tuple(self.table(chunks, group) for group in range(self._groups)),
            sampled=np.array(
                [
                    r
                    for c, end in zip(plan.chunks, ends, strict=True)
                    if c.samples
                    for r in range(end - 1 - c.drafts, end)
                ],
                np.int32,
            ),
            slots=np.array([known.slot for known in owners], np.int32),
            guesses=np.array([known.guesses or 0 for known in owners] if guesses else [], np.int32),
            parents=np.array(_parents(plan.chunks, ends) if trees else [], np.int32),
            copies=tuple((c.group, c.source, c.target, c.slots) for c in plan.copies if c.group < self._groups),
            starts=starts,
        )
        draws = [draw_of(known, chunk) for known, chunk in chunks if chunk.samples]
        self.forget(plan.ends)
        return step, draws

    def forget(self, sequences: Iterable[int]) -> None:
        """Sequences that are in no later plan: their slots are free."""
        for sequence in sequences:
            self._free.extend(self.known.pop(sequence).slots())

    def check(self) -> None:
        """Assert that every slot is free or has one sequence."""
        taken = [slot for known in self.known.values() for slot in known.slots()]
        assert sorted(taken + self._free) == list(range(self._slots)), (taken, self._free, self._slots)

    def _start(self, start: SequenceStart) -> tuple[int, Ints]:
        slot = self._take_slot()
        asked = -1 if start.params.logprobs is None else start.params.logprobs
        logprobs = max(asked, start.candidates)
        self.known[start.sequence] = Known(slot, start.prompt, start.params, start.choice, logprobs)
        return slot, np.array(start.prompt, np.int32)

    def guess_slot(self, known: Known) -> int:
        """Where guesses for a sequence go."""
        if known.guesses is None:
            known.guesses = self._take_slot()
        return known.guesses

    def _take_slot(self) -> int:
        if self._free:
            return self._free.pop()
        self._slots += 1
        return self._slots - 1

    def table(self, chunks: list[tuple[Known, Chunk]], group: int) -> Ints:
        """Page tables of one KV group, [chunks, widest]; of a tree, one for each of its paths."""
        rows = []
        for known, chunk in chunks:
            pages = chunk.pages[group]
            kept = known.tables.get(group)
            if kept is None or kept[0] is not pages:
                kept = known.tables[group] = (pages, np.array(pages, np.int32))
            rows.append(kept[1])
            if chunk.paths:
                rows.extend(np.array(path[group], np.int32) for path in chunk.paths)
        table = np.zeros((len(rows), max(map(len, rows))), np.int32)
        for row, pages_of_one in zip(table, rows, strict=True):
            row[: len(pages_of_one)] = pages_of_one
        return table


def _positions(chunk: Chunk) -> range:
    return range(chunk.start, chunk.start + len(chunk.tokens))


def _lines(chunk: Chunk) -> list[range]:
    """Positions of a tree's rows, in a line for each path: all drafts once."""
    last = chunk.end - 1
    paths = [range(last + path.depth, last + path.end_depth + 1) for path in tree_paths(chunk.parents)]
    return [range(chunk.start, paths[0].stop), *paths[1:]]


def _parents(chunks: tuple[Chunk, ...], ends: list[int]) -> list[int]:
    """Of each line of rows, the row that its first one follows, if that is in another line; -1 if not."""
    rows = []
    for chunk, end in zip(chunks, ends, strict=True):
        rows.append(-1)
        rows.extend(end - chunk.drafts + path.parent for path in tree_paths(chunk.parents)[1:])
    return rows


def _numbered(chunk: Chunk) -> tuple[int, ...]:
    """Its tokens, each guess by its number: -2 is the first of them, -3 the second."""
    first = len(chunk.tokens) - chunk.drafts
    return tuple(GUESS - (i - first) if t == GUESS else t for i, t in enumerate(chunk.tokens))


def draw_of(known: Known, chunk: Chunk) -> Draw:
    """How a chunk's rows are sampled."""
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
        drafts=chunk.drafts,
    )


assert (LAST, GUESS) == (-1, -2), "Step.ids takes the same for the token sampled last and the first guess"
