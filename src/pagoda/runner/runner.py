"""The runner: plans in, results out, in order, several under way at a time."""

from __future__ import annotations

from dataclasses import dataclass

from pagoda.backends.ops import Backend, KVStore, Model, Ops, Pending, Value
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


@dataclass(frozen=True, slots=True)
class Handle:
    """A plan under way."""

    plan: StepPlan
    pending: Pending
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

    def submit(self, plan: StepPlan) -> Handle:
        """Hand a plan over; returns at once. Plans are carried out in the order they come."""
        assert self._guesser or all(GUESS not in c.tokens for c in plan.chunks), "nobody is here to fill in drafts"
        guesses = self._guesser.submit(plan, self._batcher, self._slots) if self._guesser else ()
        step, draws = self._batcher.batch(plan)
        reports = tuple(
            (chunk.sequence, draw.logprobs >= 0)
            for chunk, draw in zip((c for c in plan.chunks if c.samples), draws, strict=True)
        )
        pending = self._program.submit(self._kv, step, self._slots, draws)
        fed = self._guesser.feed(plan, self._batcher, self._slots) if self._guesser else ()
        return Handle(plan, pending, reports, guesses + fed)

    def finish(self, handle: Handle) -> StepResult:
        """Wait for a plan's result."""
        out = handle.pending.wait()
        reports = (report for report, count in zip(handle.reports, out.counts, strict=True) for _ in range(count))
        sampled = tuple(
            Sampled(sequence, token, TokenLogprob(token, logprob, top) if wanted else None)
            for (sequence, wanted), token, logprob, top in zip(reports, out.tokens, out.logprobs, out.top, strict=True)
        )
        guessing = sum(pending.wait().seconds for pending in handle.guesses)
        return StepResult(handle.plan.number, sampled, out.seconds + guessing, guessing)

    def check(self) -> None:
        """Assert that sequences and slots agree."""
        self._batcher.check()

    def close(self) -> None:
        """Let weights and pages go, whoever still holds the runner; it takes no more plans. To be called once."""
        del self._program, self._guesser, self._kv, self._slots
