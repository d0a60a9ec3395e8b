"""The runner: plans in, results out, in order, several under way at a time."""

from __future__ import annotations

from dataclasses import dataclass

from pagoda.backends.ops import Backend, KVStore, Model, Ops, Pending, Value
from pagoda.plan import Capacity, Sampled, StepPlan, StepResult
from pagoda.runner.batch import Batcher
from pagoda.types import TokenLogprob


def whole_model(model: Model, ops: Ops) -> None:
    """All segments in order: token ids to `logits`."""
    x: Value = model.enter(ops)
    for i in range(model.layers):
        x = model.layer(ops, i, x)
    ops.output("logits", model.leave(ops, x))


@dataclass(frozen=True, slots=True)
class Handle:
    """A plan under way."""

    plan: StepPlan
    pending: Pending
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

    def submit(self, plan: StepPlan) -> Handle:
        """Hand a plan over; returns at once. Plans are carried out in the order they come."""
        step, draws = self._batcher.batch(plan)
        reports = tuple(
            (chunk.sequence, draw.logprobs >= 0)
            for chunk, draw in zip((c for c in plan.chunks if c.samples), draws, strict=True)
        )
        return Handle(plan, self._program.submit(self._kv, step, self._slots, draws), reports)

    def finish(self, handle: Handle) -> StepResult:
        """Wait for a plan's result."""
        out = handle.pending.wait()
        reports = (report for report, count in zip(handle.reports, out.counts, strict=True) for _ in range(count))
        sampled = tuple(
            Sampled(sequence, token, TokenLogprob(token, logprob, top) if wanted else None)
            for (sequence, wanted), token, logprob, top in zip(reports, out.tokens, out.logprobs, out.top, strict=True)
        )
        return StepResult(handle.plan.number, sampled, out.seconds)

    def check(self) -> None:
        """Assert that sequences and slots agree."""
        self._batcher.check()

    def close(self) -> None:
        """Let weights and pages go, whoever still holds the runner; it takes no more plans. To be called once."""
        del self._program, self._kv, self._slots
