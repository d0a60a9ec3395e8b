"""The runner: plans in, results out, in order, several under way at a time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from pagoda.backends.ops import Backend, KVStore, Model, Ops, Pending, PendingTransfer, Value
from pagoda.plan import Capacity, Sampled, StepPlan, StepResult
from pagoda.runner.batch import Batcher
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
    transfer: PendingTransfer | None
    pending: Pending | None
    reports: tuple[tuple[int, bool], ...]
    """Of each chunk that samples: its sequence, and whether log-probabilities are wanted."""


class Runner:
    """Runs one model on one backend. Used by one thread."""

    def __init__(self, backend: Backend, model: Model, kv: KVStore, capacity: Capacity) -> None:
        self.capacity = capacity
        self._program = backend.program(lambda ops: whole_model(model, ops))
        self._kv = kv
        self._slots = backend.slots()
        self._batcher = Batcher(len(model.groups))
        self._backend = backend
        self.shelf: Shelf | None = None
        """Needed by plans that save or load pages."""

    def submit(self, plan: StepPlan) -> Handle:
        """Hand a plan over; returns at once. Plans are carried out in the order they come."""
        transfer = self._transfer(plan)
        if not plan.chunks:
            self._batcher.forget(plan.ends)
            return Handle(plan, transfer, None, ())
        step, draws = self._batcher.batch(plan)
        reports = tuple(
            (chunk.sequence, draw.logprobs >= 0)
            for chunk, draw in zip((c for c in plan.chunks if c.samples), draws, strict=True)
        )
        return Handle(plan, transfer, self._program.submit(self._kv, step, self._slots, draws), reports)

    def finish(self, handle: Handle) -> StepResult:
        """Wait for a plan's result."""
        if handle.transfer is not None:
            self._put(handle.plan, handle.transfer)
        if handle.pending is None:
            return StepResult(handle.plan.number, (), 0.0)
        out = handle.pending.wait()
        sampled = tuple(
            Sampled(sequence, token, TokenLogprob(token, logprob, top) if wanted else None)
            for (sequence, wanted), token, logprob, top in zip(
                handle.reports, out.tokens, out.logprobs, out.top, strict=True
            )
        )
        return StepResult(handle.plan.number, sampled, out.seconds)

    def _transfer(self, plan: StepPlan) -> PendingTransfer | None:
        if not plan.saves and not plan.loads:
            return None
        assert self.shelf is not None, "pages are moved and there is no shelf"
        loads = [(move.pages, np.frombuffer(self.shelf.take(move.ticket), np.uint8)) for move in plan.loads]
        return self._backend.transfer(self._kv, [move.pages for move in plan.saves], loads)

    def _put(self, plan: StepPlan, transfer: PendingTransfer) -> None:
        assert self.shelf is not None, "pages are moved and there is no shelf"
        saved, seconds = transfer.wait()
        for move, data in zip(plan.saves, saved, strict=True):
            self.shelf.put(move.ticket, data.data)
        if plan.loads:
            self.shelf.loaded(len(plan.loads), seconds)

    def check(self) -> None:
        """Assert that sequences and slots agree."""
        self._batcher.check()

    def close(self) -> None:
        """Let weights and pages go, whoever still holds the runner; it takes no more plans. To be called once."""
        del self._program, self._kv, self._slots, self._backend
