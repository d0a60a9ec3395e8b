"""The runner: plans in, results out, in order, several under way at a time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from pagoda.backends.ops import Backend, Bytes, KVStore, Model, Ops, Pending, PendingTransfer, Value
from pagoda.plan import GUESS, Capacity, Sampled, StepPlan, StepResult
from pagoda.runner.batch import Batcher
from pagoda.runner.guessing import Guesser
from pagoda.types import TokenLogprob


def whole_model(model: Model, ops: Ops) -> None:
    """All segments in order: token ids to `logits`."""
    x: Value = model.enter(ops)
    for i in range(model.layers):
        x = model.layer(ops, i, x)
    ops.output("logits", model.leave(ops, x))


class Shelf(Protocol):
    """Where the bytes of pages come from and go to. Never waits."""

    def take(self, ticket: int) -> memoryview:
        """The bytes to be loaded; they are the caller's now."""
        ...

    def put(self, ticket: int, data: memoryview) -> None:
        """Bytes that were saved; they are the shelf's now."""
        ...

    def loaded(self, units: int, seconds: float) -> None:
        """So many were copied into place, in so many seconds."""
        ...


@dataclass(frozen=True, slots=True)
class Handle:
    """A plan under way."""

    plan: StepPlan
    transfers: tuple[PendingTransfer, ...]
    """Pages of the model's groups, and of its drafter's."""
    pending: Pending | None
    reports: tuple[tuple[int, bool], ...]
    """Of each chunk that samples: its sequence, and whether log-probabilities are wanted."""
    guesses: tuple[Pending, ...] = ()
    """Steps beside it, of its drafter."""


class Runner:
    """Runs one model on one backend. Used by one thread.

    Args:
        backend: its arithmetic.
        model: what it runs.
        kv: pages of the model's KV groups.
        capacity: what it holds.
        guesser: guesses the drafts that plans leave open; None: they leave none open.
    """

    def __init__(
        self, backend: Backend, model: Model, kv: KVStore, capacity: Capacity, guesser: Guesser | None = None
    ) -> None:
        self.capacity = capacity
        self._guesser = guesser
        self._program = backend.program(lambda ops: whole_model(model, ops))
        self._kv = kv
        self._slots = backend.slots()
        self._batcher = Batcher(len(model.groups))
        self._backend = backend
        groups, own = len(model.groups), guesser.own_store if guesser else None
        self._stores = ((kv, slice(0, groups)), *(() if own is None else ((own, slice(groups, None)),)))
        """Each with which of a plan's groups it holds."""
        self.shelf: Shelf | None = None
        """Needed by plans that save or load pages."""

    def submit(self, plan: StepPlan) -> Handle:
        """Hand a plan over; returns at once. Plans are carried out in the order they come."""
        transfers = self._transfer(plan)
        if not plan.chunks:
            self._batcher.forget(plan.ends)
            return Handle(plan, transfers, None, ())
        assert self._guesser or all(GUESS not in c.tokens for c in plan.chunks), "nobody is here to fill in drafts"
        guesses = self._guesser.submit(plan, self._batcher, self._slots) if self._guesser else ()
        step, draws = self._batcher.batch(plan)
        reports = tuple(
            (chunk.sequence, draw.logprobs >= 0)
            for chunk, draw in zip((c for c in plan.chunks if c.samples), draws, strict=True)
        )
        pending = self._program.submit(self._kv, step, self._slots, draws)
        fed = self._guesser.feed(plan, self._batcher, self._slots) if self._guesser else ()
        return Handle(plan, transfers, pending, reports, guesses + fed)

    def finish(self, handle: Handle) -> StepResult:
        """Wait for a plan's result."""
        if handle.transfers:
            self._put(handle.plan, handle.transfers)
        if handle.pending is None:
            return StepResult(handle.plan.number, (), 0.0)
        out = handle.pending.wait()
        reports = (report for report, count in zip(handle.reports, out.counts, strict=True) for _ in range(count))
        sampled = tuple(
            Sampled(sequence, token, TokenLogprob(token, logprob, top) if wanted else None)
            for (sequence, wanted), token, logprob, top in zip(reports, out.tokens, out.logprobs, out.top, strict=True)
        )
        guessing = sum(pending.wait().seconds for pending in handle.guesses)
        return StepResult(handle.plan.number, sampled, out.seconds + guessing, guessing)

    def _transfer(self, plan: StepPlan) -> tuple[PendingTransfer, ...]:
        if not plan.saves and not plan.loads:
            return ()
        assert self.shelf is not None, "pages are moved and there is no shelf"
        loads = [(move.pages, np.frombuffer(self.shelf.take(move.ticket), np.uint8)) for move in plan.loads]
        pending, at = [], 0
        for kv, groups in self._stores:
            end = at + kv.unit_bytes
            here = [(pages[groups], data[at:end]) for pages, data in loads]
            pending.append(self._backend.transfer(kv, [move.pages[groups] for move in plan.saves], here))
            at = end
        return tuple(pending)

    def _put(self, plan: StepPlan, transfers: tuple[PendingTransfer, ...]) -> None:
        assert self.shelf is not None, "pages are moved and there is no shelf"
        parts, seconds = zip(*(transfer.wait() for transfer in transfers), strict=True)
        for move, *data in zip(plan.saves, *parts, strict=True):
            whole: Bytes = data[0] if len(data) == 1 else np.concatenate(data)
            self.shelf.put(move.ticket, whole.data)
        if plan.loads:
            self.shelf.loaded(len(plan.loads), sum(seconds))

    def check(self) -> None:
        """Assert that sequences and slots agree."""
        self._batcher.check()

    def close(self) -> None:
        """Let weights and pages go, whoever still holds the runner; it takes no more plans. To be called once."""
        del self._program, self._guesser, self._kv, self._slots, self._stores, self._backend
