"""`Guesser`: the runner's own drafter. It fills in the drafts that a plan leaves open, without coming back to Python.

Every token that it guesses is a step in the native queue: it reads the token before from a slot of guesses and samples
the next into it, with the noise of its place; the plan's own step takes all of them from there.

It is the model's first layers, whose keys and values are those that the whole model writes to the same places (Zhang et
al. 2024, "Draft & verify"); or a smaller model with KV groups of its own (Leviathan et al. 2023). That one is fed
prompts along with the model, and the tokens of an output when it is next asked to guess. It takes for granted that it
knows what was found in the cache: where it does not, it guesses badly, and no output is any different.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from pagoda.backends.ops import Backend, Draw, Ints, KVStore, Model, Ops, Pending, Slots, Step, Value
from pagoda.plan import GUESS, LAST, Chunk, StepPlan
from pagoda.runner.batch import Batcher, Known, draw_of


def first_layers(model: Model, count: int, ops: Ops) -> None:
    """The first layers, then straight to `logits`."""
    x: Value = model.enter(ops)
    for i in range(count):
        x = model.layer(ops, i, x)
    ops.output("logits", model.leave(ops, x))


class Guesser:
    """Guesses with some layers of a model.

    Args:
        backend: its arithmetic.
        model: whose layers.
        layers: how many of them.
        kv: where keys and values are.
        first_group: of `kv`, in the plan's tables; 0 if they are the model's own.
    """

    def __init__(self, backend: Backend, model: Model, layers: int, kv: KVStore, first_group: int = 0) -> None:
        self._program = backend.program(lambda ops: first_layers(model, layers, ops))
        self._kv = kv
        self._groups = range(first_group, first_group + len(model.groups))
        self._own = first_group > 0
        self._owed: list[tuple[int, int, int, int]] = []
        """Copies of its pages that no step of its own has carried out yet."""

    @property
    def own_store(self) -> KVStore | None:
        """Where the keys and values of a model of its own are."""
        return self._kv if self._own else None

    def submit(self, plan: StepPlan, batcher: Batcher, slots: Slots) -> tuple[Pending, ...]:
        """Hand over the steps that fill in a plan's open drafts, before the plan itself is batched.

        A sequence is met by a plan without drafts, and that one is handed over before.
        """
        if self._own:
            first = self._groups.start
            self._owed += [(c.group - first, c.source, c.target, c.slots) for c in plan.copies if c.group >= first]
        else:
            self._owed = [(c.group, c.source, c.target, c.slots) for c in plan.copies]
        chunks = [c for c in plan.chunks if GUESS in c.tokens]
        rounds = []
        for i in range(max((c.drafts for c in chunks), default=0)):
            going = [(batcher.known[c.sequence], c) for c in chunks if i < c.drafts]
            step = self._first(going, batcher) if i == 0 else self._next(going, i, batcher)
            draws = [_draw(known, c, i) for known, c in going]
            rounds.append(self._program.submit(self._kv, step, slots, draws))
        for chunk in chunks:
            batcher.known[chunk.sequence].fed = chunk.end - 1 + chunk.drafts
        return tuple(rounds)

    def feed(self, plan: StepPlan, batcher: Batcher, slots: Slots) -> tuple[Pending, ...]:
        """If it has a model of its own: the parts of prompts in a plan, once that is batched."""
        if not self._own:
            return ()
        going = [(batcher.known.get(c.sequence), c) for c in plan.chunks]
        chunks = [(known, c) for known, c in going if known is not None and c.start < len(known.prompt)]
        if not chunks:
            return ()
        step = self._step(chunks, [(c.start, c.end) for _, c in chunks], batcher)
        for known, chunk in chunks:
            known.fed = chunk.end
        return (self._program.submit(self._kv, step, slots),)

    def _first(self, going: list[tuple[Known, Chunk]], batcher: Batcher) -> Step:
        """From what it has not seen yet to the last token."""
        begins = tuple((batcher.guess_slot(known), np.empty(0, np.int32)) for known, _ in going)
        fed = [(min(known.fed, c.start) if self._own else c.start, c.end) for known, c in going]
        return replace(self._step(going, fed, batcher), starts=begins)

    def _next(self, going: list[tuple[Known, Chunk]], i: int, batcher: Batcher) -> Step:
        """The token guessed last."""
        rows = np.arange(len(going), dtype=np.int32)
        return Step(
            ids=np.full(len(going), LAST, np.int32),
            positions=np.array([c.end - 1 + i for _, c in going], np.int32),
            sequences=rows,
            tables=tuple(batcher.table(going, group) for group in self._groups),
            sampled=rows,
            slots=np.array([known.guesses for known, _ in going], np.int32),
        )

    def _step(self, going: list[tuple[Known, Chunk]], ranges: list[tuple[int, int]], batcher: Batcher) -> Step:
        """Positions [start, end) of each sequence, whose last ones are sampled if they are the last known."""
        counts = [end - start for start, end in ranges]
        own = np.array([known.slot for known, _ in going], np.int32)
        copies, self._owed = tuple(self._owed), []
        return Step(
            ids=np.concatenate([_ids(*pair, *both) for pair, both in zip(going, ranges, strict=True)]),
            positions=np.concatenate([np.arange(*both, dtype=np.int32) for both in ranges]),
            sequences=np.repeat(np.arange(len(going), dtype=np.int32), counts),
            tables=tuple(batcher.table(going, group) for group in self._groups),
            sampled=(np.cumsum(counts, dtype=np.int32) - 1)[[c.drafts > 0 for _, c in going]],
            slots=own,
            guesses=own,
            copies=copies,
        )


def _ids(known: Known, chunk: Chunk, start: int, end: int) -> Ints:
    """Token ids of positions [start, end); of an output, by their numbers in the sequence's slot."""
    size = len(known.prompt)
    ids = [known.prompt[p] if p < size else GUESS - (p - size) for p in range(start, min(end, chunk.start))]
    return np.array([*ids, *chunk.tokens[: end - max(start, chunk.start)]], np.int32)


def _draw(known: Known, chunk: Chunk, i: int) -> Draw:
    """With the noise of its place, as the model itself would; without penalties: guesses have no history."""
    assert known.guesses is not None, "a guess has no slot"
    return replace(
        draw_of(known, chunk),
        slot=known.guesses,
        position=chunk.end + i,
        repetition=1.0,
        frequency=0.0,
        presence=0.0,
        logprobs=-1,
        drafts=0,
    )
