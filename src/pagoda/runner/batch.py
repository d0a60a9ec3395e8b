"""From a plan to the arrays of one step. Knows sequences by number; knows nothing of requests or text."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

import numpy as np

from pagoda.backends.ops import Draw, Ints, Step
from pagoda.plan import GUESS, LAST, Chunk, SequenceStart, StepPlan
from pagoda.types import SamplingParams


@dataclass(slots=True)
class _Known:
    """What is kept of a sequence between plans."""

    slot: int
    params: SamplingParams
    choice: int
    guesses: int | None = None
    """Slot of what the runner's own drafter guesses for it, from the first time on."""
    tables: dict[int, tuple[tuple[int, ...], Ints]] = field(default_factory=dict)
    """Per KV group, the plan's table and the array made of it: a table is the same object until it changes."""

    def slots(self) -> tuple[int, ...]:
        """All that it has taken."""
        return (self.slot,) if self.guesses is None else (self.slot, self.guesses)


class Batcher:
    """Turns plans, in order, into steps and draws."""

    def __init__(self, groups: int) -> None:
        self._groups = groups
        self._known: dict[int, _Known] = {}
        self._free: list[int] = []
        self._slots = 0

    def batch(self, plan: StepPlan) -> tuple[Step, list[Draw]]:
        """The step of one plan, and a draw for each chunk that samples, in the plan's order, with its drafts."""
        starts = tuple(self._start(start) for start in plan.starts)
        chunks = [(self._known[c.sequence], c) for c in plan.chunks]
        guesses = any(GUESS in c.tokens for c in plan.chunks)
        counts = [len(c.tokens) for c in plan.chunks]
        ends = np.cumsum(counts, dtype=np.int32)
        step = Step(
            ids=np.array([t for c in plan.chunks for t in (_numbered(c) if guesses else c.tokens)], np.int32),
            positions=_positions(plan.chunks),
            sequences=np.repeat(np.arange(len(counts), dtype=np.int32), counts),
            tables=tuple(self._table(chunks, group) for group in range(self._groups)),
            sampled=np.array(
                [
                    r
                    for c, end in zip(plan.chunks, ends.tolist(), strict=True)
                    if c.samples
                    for r in range(end - 1 - c.drafts, end)
                ],
                np.int32,
            ),
            slots=np.array([known.slot for known, _ in chunks], np.int32),
            guesses=np.array([known.guesses or 0 for known, _ in chunks] if guesses else [], np.int32),
            copies=tuple((c.group, c.source, c.target, c.slots) for c in plan.copies),
            starts=starts,
        )
        draws = [_draw(known, chunk) for known, chunk in chunks if chunk.samples]
        for sequence in plan.ends:
            self._free.extend(self._known.pop(sequence).slots())
        return step, draws

    def guess_rounds(self, plan: StepPlan) -> list[tuple[Step, list[Draw]]]:
        """The steps in which the runner's own drafter guesses what `plan` leaves open, one token of each sequence after
        the other. To be called, and carried out, before `batch`.
        """
        chunks = [c for c in plan.chunks if GUESS in c.tokens]
        begins: list[tuple[int, Ints]] = []
        rounds = []
        for i in range(max((c.drafts for c in chunks), default=0)):
            going = [(self._known[c.sequence], c) for c in chunks if i < c.drafts]
            if i == 0:
                begins += [(self._guess_slot(known), np.empty(0, np.int32)) for known, _ in going]
            rows = np.arange(len(going), dtype=np.int32)
            step = Step(
                ids=np.array([LAST if i else c.tokens[0] for _, c in going], np.int32),
                positions=np.array([c.end - 1 + i for _, c in going], np.int32),
                sequences=rows,
                tables=tuple(self._table(going, group) for group in range(self._groups)),
                sampled=rows,
                slots=np.array([known.guesses if i else known.slot for known, _ in going], np.int32),
                copies=tuple((c.group, c.source, c.target, c.slots) for c in plan.copies) if i == 0 else (),
                starts=tuple(begins) if i == 0 else (),
            )
            rounds.append((step, [_guess(known, c, i) for known, c in going]))
        return rounds

    def check(self) -> None:
        """Assert that every slot is free or has one sequence."""
        taken = [slot for known in self._known.values() for slot in known.slots()]
        assert sorted(taken + self._free) == list(range(self._slots)), (taken, self._free, self._slots)

    def _start(self, start: SequenceStart) -> tuple[int, Ints]:
        slot = self._slot()
        self._known[start.sequence] = _Known(slot, start.params, start.choice)
        return slot, np.array(start.prompt, np.int32)

    def _guess_slot(self, known: _Known) -> int:
        if known.guesses is None:
            known.guesses = self._slot()
        return known.guesses

    def _slot(self) -> int:
        if self._free:
            return self._free.pop()
        self._slots += 1
        return self._slots - 1

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
    return np.array([p for c in chunks for p in range(c.start, c.start + len(c.tokens))], np.int32)


def _numbered(chunk: Chunk) -> tuple[int, ...]:
    """Its tokens, each guess by its number: -2 is the first of them, -3 the second."""
    first = len(chunk.tokens) - chunk.drafts
    return tuple(GUESS - (i - first) if t == GUESS else t for i, t in enumerate(chunk.tokens))


def _guess(known: _Known, chunk: Chunk, i: int) -> Draw:
    """With the noise of its place, as the model itself would; without penalties: guesses have no history."""
    assert known.guesses is not None, "a guess has no slot"
    return replace(
        _draw(known, chunk),
        slot=known.guesses,
        position=chunk.end + i,
        repetition=1.0,
        frequency=0.0,
        presence=0.0,
        logprobs=-1,
        drafts=0,
    )


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
        logprobs=-1 if p.logprobs is None else p.logprobs,
        drafts=chunk.drafts,
    )


assert (LAST, GUESS) == (-1, -2), "Step.ids takes the same for the token sampled last and the first guess"
