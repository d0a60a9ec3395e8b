"""`BeamSearch`: which lines of tokens live on, which are finished, and when the search is over. Pure data.

Knows log-probabilities and tokens; nothing of sequences, pages or text. A beam has a slot, from 0 to the width: whoever
holds the beams' KV keeps it by slot. A beam's first child stays in its slot, the others take slots that are free.

The rule is that of transformers' `generate(num_beams=...)`; ties go to the lower rank of the parent, then to the lower
token id. So a result is a function of the candidates alone, not of slots or of the order in which they came.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from heapq import nsmallest

from pagoda.types import EarlyStopping, TokenLogprob

Candidates = Sequence[tuple[int, float]]
"""(token id, log-probability), likeliest first."""


@dataclass(frozen=True, slots=True)
class Beam:
    """A line of tokens that goes on."""

    slot: int
    tokens: tuple[int, ...] = ()
    """Those after the prompt."""
    score: float = 0.0
    """Sum of their log-probabilities."""
    entries: tuple[TokenLogprob, ...] = ()
    """One for each token, if they are wanted."""


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """A finished line."""

    tokens: tuple[int, ...]
    score: float
    """Sum of the tokens' log-probabilities, divided by (how many they are) ** length_penalty."""
    entries: tuple[TokenLogprob, ...]


@dataclass(frozen=True, slots=True)
class Move:
    """A beam of the next round, and in which slot its parent is: its KV up to the newest token is there."""

    slot: int
    parent: int
    tokens: tuple[int, ...]


class BeamSearch:
    """One request's beams, in rounds of a token each.

    Args:
        width: most beams, and most hypotheses.
        most: tokens after which a line is finished.
        keep: continuations that are looked at in a round: 2 * width, or more if several tokens can end a line.
        length_penalty: over 0 favours long lines, under 0 short ones.
        early_stopping: True: over as soon as there are `width` hypotheses. False: once the best beam, as it stands, is
            no better than the worst of them. "never": once it could not become better in the length that is left.
        entries: likeliest tokens to keep of each place; None keeps nothing.
    """

    def __init__(
        self,
        width: int,
        most: int,
        keep: int,
        length_penalty: float = 1.0,
        early_stopping: EarlyStopping = False,
        entries: int | None = None,
    ) -> None:
        self.width = width
        self.keep = keep
        self.beams: list[Beam] = [Beam(0)]
        """Those that go on, best first."""
        self.hypotheses: list[Hypothesis] = []
        """Best first; at most `width`."""
        self._most = most
        self._penalty = length_penalty
        self._early = early_stopping
        self._entries = entries
        self._offers: dict[int, Candidates] = {}

    @property
    def done(self) -> bool:
        """Whether the search is over."""
        return not self.beams

    @property
    def ready(self) -> bool:
        """Whether each beam has its candidates."""
        return len(self._offers) == len(self.beams)

    def offer(self, slot: int, candidates: Candidates) -> None:
        """The likeliest next tokens of the beam in a slot: at least `keep`, or the whole vocabulary."""
        assert slot not in self._offers, f"the beam in slot {slot} has its candidates already"
        assert any(beam.slot == slot for beam in self.beams), f"no beam is in slot {slot}"
        self._offers[slot] = candidates

    def advance(self, ends: Callable[[tuple[int, ...]], bool]) -> list[Move]:
        """Choose the beams of the next round; none if the search is over.

        Args:
            ends: whether these tokens, the newest of them last, are a finished line; not asked at the greatest length.
        """
        assert self.ready, "a beam has no candidates yet"
        lines = [self._line(*found) for found in self._best()]
        finished = [len(line.tokens) >= self._most or ends(line.tokens) for line in lines]
        for line, over in zip(lines[: self.width], finished, strict=False):
            if over:
                self.hypotheses.append(Hypothesis(line.tokens, self._scored(line, len(line.tokens)), line.entries))
        self.hypotheses.sort(key=lambda hypothesis: -hypothesis.score)
        del self.hypotheses[self.width :]
        going = [line for line, over in zip(lines, finished, strict=True) if not over][: self.width]
        if going and self._over(going[0]):
            going = []
        moves = self._place(going)
        self.beams = [replace(line, slot=move.slot) for line, move in zip(going, moves, strict=True)]
        self._offers.clear()
        return moves

    def check(self) -> None:
        """Assert that beams are in order, of one length, in slots of their own, and that hypotheses are in order."""
        slots = [beam.slot for beam in self.beams]
        assert len(set(slots)) == len(slots) <= self.width, f"slots of the beams: {slots}"
        assert all(0 <= slot < self.width for slot in slots), f"slots of the beams: {slots}"
        assert set(self._offers) <= set(slots), "candidates without a beam"
        scores = [beam.score for beam in self.beams]
        assert scores == sorted(scores, reverse=True), "beams are out of order"
        assert len({len(beam.tokens) for beam in self.beams}) <= 1, "beams of different lengths"
        assert len({beam.tokens for beam in self.beams}) == len(slots), "two beams are one line"
        assert all(len(beam.tokens) < self._most for beam in self.beams), "a beam goes on beyond the end"
        ranks = [hypothesis.score for hypothesis in self.hypotheses]
        assert ranks == sorted(ranks, reverse=True), "hypotheses are out of order"
        assert len(ranks) <= self.width, "too many hypotheses"
        assert self.beams or self.hypotheses, "a search came to nothing"

    def _best(self) -> list[tuple[float, int, int, float]]:
        """The best continuations: (minus the sum, rank of the parent, token id, the token's log-probability)."""
        found = (
            (-(beam.score + logprob), rank, token, logprob)
            for rank, beam in enumerate(self.beams)
            for token, logprob in self._offers[beam.slot]
        )
        return nsmallest(self.keep, found)

    def _line(self, minus: float, rank: int, token: int, logprob: float) -> Beam:
        """A continuation; its slot is still its parent's."""
        parent, entries = self.beams[rank], tuple[TokenLogprob, ...]()
        if self._entries is not None:
            top = tuple(self._offers[parent.slot][: self._entries])
            entries = (*parent.entries, TokenLogprob(token, logprob, top))
        return Beam(parent.slot, (*parent.tokens, token), -minus, entries)

    def _scored(self, line: Beam, length: int) -> float:
        return line.score / float(length**self._penalty)

    def _over(self, best: Beam) -> bool:
        """Whether no hypothesis is wanted any more, `best` being the best of those that go on."""
        if len(self.hypotheses) < self.width:
            return False
        if self._early is True:
            return True
        at_best = self._most if self._early == "never" and self._penalty > 0 else len(best.tokens)
        return self._scored(best, at_best) <= self.hypotheses[-1].score

    def _place(self, going: Sequence[Beam]) -> list[Move]:
        """A slot for each of those that go on, which are in their parents' slots."""
        parents = {line.slot for line in going}
        free = iter([slot for slot in range(self.width) if slot not in parents])
        moves = []
        for line in going:
            slot = line.slot if line.slot in parents else next(free)
            parents.discard(line.slot)
            moves.append(Move(slot, line.slot, line.tokens))
        return moves
