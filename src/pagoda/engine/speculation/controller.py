"""`Controller`: which sequences get drafts in a step, how many, and whose; none where they do not pay.

A step of R sequences gives R tokens in the time of R rows. A draft makes it longer and adds its chance of being right.
It pays if tokens per second then are more: so a depth is chosen for each sequence in turn, given what was chosen before.
"""

from __future__ import annotations

from collections.abc import Sequence as Many
from dataclasses import dataclass

from pagoda.engine.request import Sequence
from pagoda.engine.speculation.drafter import MOST_DRAFTS, NO_GUESS, Drafter, Guess
from pagoda.engine.speculation.pace import Pace
from pagoda.plan import StepPlan, StepResult

GAIN = 1.03
"""Drafts must promise so many times the tokens per second: what is learned is not exact."""
LOOKS = 512
"""Tokens that drafters look at in one step: about a millisecond, while the machine room works."""


@dataclass(slots=True)
class _Outlook:
    """What the step in the making is expected to give."""

    rows: int
    tokens: float
    guesses: int = 0
    """Tokens that the runner's drafter fills in for the sequence with most of them."""
    drafts: int = 0


class Controller:
    """Drafts for one step after the other.

    Args:
        drafters: whom to ask; none is plain decoding.
        always: take all that is guessed, whether it pays or not (to measure, and for tests).
    """

    def __init__(self, drafters: Many[Drafter] = (), *, always: bool = False) -> None:
        self._drafters = {drafter.name: drafter for drafter in drafters}
        self._always = always
        self._pace = Pace()
        self._outlook = _Outlook(0, 0.0)
        self._spare = 0
        self._looks = 0

    def open(self, running: int, rows: int, alone: bool) -> None:
        """A step begins: so many sequences run, there are so many rows; `alone`: none of them is of a prompt."""
        self._outlook = _Outlook(running, float(running))
        self._spare = rows - running if alone and self._drafters else 0
        self._looks = LOOKS

    def draft(self, sequence: Sequence) -> tuple[str, tuple[int, ...]]:
        """(whose, which) drafts a sequence gets whose newest token is computed in this step."""
        most = min(self._spare, MOST_DRAFTS, sequence.limit - sequence.known - 1)
        best, by = NO_GUESS, ""
        if not sequence.speculates:
            return by, best.tokens
        for drafter in self._drafters.values():
            self._looks -= drafter.follow(sequence, self._looks) if self._looks > 0 else 0
            if most > 0:
                guess = drafter.guess(sequence, most)
                if (taken := self._worth(guess, drafter.seconds)) and sum(taken.chances) > sum(best.chances):
                    best, by = taken, drafter.name
        self._take(best, by)
        return by, best.tokens

    def finished(self, plan: StepPlan, result: StepResult, gap: float | None, ahead: bool) -> None:
        """A step is over.

        Args:
            plan: what it was.
            result: what it gave.
            gap: seconds that the machine room had nothing to do before it; None if there was nothing to do.
            ahead: whether it was planned before the step before it was over.
        """
        if not self._drafters:
            return
        if plan.rows == len(plan.chunks) + plan.drafts:
            self._pace.measured(plan.rows, max(result.seconds - result.guessing, 1e-9))
        if gap is not None:
            self._pace.waited(gap, ahead)

    def verified(self, sequence: Sequence, drafter: str, asked: int, right: int) -> None:
        """Of a sequence's drafts, so many were right."""
        self._drafters[drafter].verified(sequence, asked, right)

    def forget(self, sequence: Sequence) -> None:
        """A sequence has ended."""
        for drafter in self._drafters.values():
            drafter.forget(sequence)

    def check(self) -> None:
        """Assert the drafters' and its own invariants."""
        self._pace.check()
        for drafter in self._drafters.values():
            drafter.check()

    def _worth(self, guess: Guess, seconds: float) -> Guess | None:
        """The beginning of a guess that gives most tokens per second; None if none gives more than there are."""
        if self._always:
            return guess if guess.tokens else None
        now = self._rate(self._outlook, 0.0, 0, 0, seconds)
        if now is None:
            return guess if guess.tokens else None  # nothing is known yet: the first steps find out
        best, size, chances = now * GAIN, 0, 0.0
        for count, chance in enumerate(guess.chances, 1):
            chances += chance
            rate = self._rate(self._outlook, chances, count, count if seconds else 0, seconds)
            assert rate is not None
            if rate > best:
                best, size = rate, count
        return Guess(guess.tokens[:size], guess.chances[:size]) if size else None

    def _rate(self, outlook: _Outlook, chances: float, drafts: int, guesses: int, seconds: float) -> float | None:
        """Tokens per second with so many drafts more."""
        pace = self._pace
        step = pace.seconds(outlook.rows + drafts)
        if step is None:
            return None
        gap = pace.gap_waiting if outlook.drafts + drafts else pace.gap_ahead
        return (outlook.tokens + chances) / (step + gap + max(outlook.guesses, guesses) * seconds)

    def _take(self, guess: Guess, by: str) -> None:
        count = len(guess.tokens)
        self._spare -= count
        outlook = self._outlook
        outlook.rows += count
        outlook.drafts += count
        outlook.tokens += sum(guess.chances)
        if by and self._drafters[by].seconds:
            outlook.guesses = max(outlook.guesses, count)
