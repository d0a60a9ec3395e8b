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


def first_layers(model: Model, count: int, ops: Ops) -> None:
    """Self-speculation (Zhang et al. 2024, "Draft & verify"): the first layers, then straight to the logits.

    Its keys and values are those that the whole model writes to the same places.
    """
    x: Value = model.enter(ops)
    for i in range(count):
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
    """Steps before it in which its drafts were guessed."""


class Runner:
    """Runs one model on one backend. Used by one thread.

    Args:
        backend: its arithmetic.
        model: what it runs.
        kv: pages of the model's KV groups.
        capacity: what it holds.
        guess_layers: how many of the model's layers guess drafts that plans leave open; 0: plans leave none open.
    """

    def __init__(self, backend: Backend, model: Model, kv: KVStore, capacity: Capacity, guess_layers: int = 0) -> None:
        self.capacity = capacity
        self._guesser = backend.program(lambda ops: first_layers(model, guess_layers, ops)) if guess_layers else None
        self._program = backend.program(lambda ops: whole_model(model, ops))
        self._kv = kv
        self._slots = backend.slots()
        self._batcher = Batcher(len(model.groups))

    def submit(self, plan: StepPlan) -> Handle:
        """Hand a plan over; returns at once. Plans are carried out in the order they come."""
        guesses = self._guess(plan)
        step, draws = self._batcher.batch(plan)
        reports = tuple(
            (chunk.sequence, draw.logprobs >= 0)
            for chunk, draw in zip((c for c in plan.chunks if c.samples), draws, strict=True)
        )
        return Handle(plan, self._program.submit(self._kv, step, self._slots, draws), reports, guesses)

    def _guess(self, plan: StepPlan) -> tuple[Pending, ...]:
        """Hand over the steps that fill in a plan's open drafts: they run before it, without coming back here."""
        rounds = self._batcher.guess_rounds(plan)
        assert self._guesser is not None or not rounds, "a plan leaves drafts open, and nobody is here to guess them"
        return tuple(
            self._guesser.submit(self._kv, step, self._slots, draws) for step, draws in rounds if self._guesser
        )

    def finish(self, handle: Handle) -> StepResult:
        """Wait for a plan's result."""
        out = handle.pending.wait()
        reports = (report for report, count in zip(handle.reports, out.counts, strict=True) for _ in range(count))
        sampled = tuple(
            Sampled(sequence, token, TokenLogprob(token, logprob, top) if wanted else None)
            for (sequence, wanted), token, logprob, top in zip(reports, out.tokens, out.logprobs, out.top, strict=True)
        )
        guessing = sum(pending.wait().seconds for pending in handle.guesses)  # they are over
        return StepResult(handle.plan.number, sampled, out.seconds + guessing, guessing)

    def check(self) -> None:
        """Assert that sequences and slots agree."""
        self._batcher.check()

    def close(self) -> None:
        """Let weights and pages go, whoever still holds the runner; it takes no more plans. To be called once."""
        del self._program, self._guesser, self._kv, self._slots
