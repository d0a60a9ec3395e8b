"""`Controller`: which sequences get drafts in a step, how many, and whose; none where they do not pay.

A step of R sequences gives R tokens in the time of R rows. A draft makes it longer and adds its chance of being right.
It pays if tokens per second then are more: so a depth is chosen for each sequence in turn, given what was chosen
before. A drafter that is not worth asking is tried now and then, for less than a hundredth of the time.
"""

from __future__ import annotations

from collections.abc import Sequence as Many
from dataclasses import dataclass

from pagoda.engine.request import Sequence
from pagoda.engine.speculation.drafter import MOST_DRAFTS, NO_GUESS, Drafter, Guess
from pagoda.engine.speculation.row_times import RowTimes
from pagoda.plan import GUESS, MOST_OF_STEP, StepPlan, StepResult

GAIN = 1.03
"""Drafts must promise so many times the tokens per second: what is learned is not exact."""
PROBES = 0.005
"""Share of the time that may go into trying what does not seem to pay."""
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
        most: drafts of one sequence in one step.
    """

    def __init__(self, drafters: Many[Drafter] = (), *, always: bool = False, most: int = MOST_DRAFTS) -> None:
        self._drafters = {drafter.name: drafter for drafter in drafters}
        self._always = always
        self._most = most
        self._times = RowTimes()
        self._outlook = _Outlook(0, 0.0)
        self._running = 0
        self._spare = 0
        self._looks = 0
        self._purse = dict.fromkeys(self._drafters, 0.0)
        """Seconds that each drafter may be tried for."""

    @property
    def drafters(self) -> tuple[Drafter, ...]:
        """Whom it asks."""
        return tuple(self._drafters.values())

    def open(self, running: int, rows: int, alone: bool) -> None:
        """A step begins: so many sequences have one token due, of so many rows; `alone`: nobody else wants any."""
        self._outlook = _Outlook(running, float(running))
        self._running = running
        self._spare = min(rows - running, MOST_OF_STEP) if alone and self._drafters else 0
        self._looks = LOOKS

    def draft(self, sequence: Sequence) -> tuple[str, Guess]:
        """(whose, which) drafts a sequence gets whose newest token is computed in this step."""
        most = min(self._spare, self._most, sequence.limit - sequence.known - 1)
        best, by = NO_GUESS, ""
        if not sequence.speculates:
            return by, best
        for drafter in self._drafters.values():
            self._looks -= drafter.follow(sequence, self._looks) if self._looks > 0 else 0
            if most > 0:
                taken = self._worth(drafter.guess(sequence, most), drafter)
                if sum(taken.chances) > sum(best.chances):
                    best, by = taken, drafter.name
        self._take(best, by)
        return by, best

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
            self._times.measured(plan.rows, max(result.seconds - result.guessing, 1e-9))
        if gap is not None:
            self._times.waited(gap, ahead)
        for name in self._purse:
            self._purse[name] += PROBES * result.seconds
        guesses = {chunk.drafter: chunk.tokens.count(GUESS) for chunk in plan.chunks}
        for name, most in guesses.items():
            if most:
                self._drafters[name].took(most, result.guessing)

    def verified(self, sequence: Sequence, drafter: str, asked: int, right: int) -> None:
        """Of a sequence's drafts, so many were right."""
        self._drafters[drafter].verified(sequence, asked, right)

    def forget(self, sequence: Sequence) -> None:
        """A sequence has ended."""
        for drafter in self._drafters.values():
            drafter.forget(sequence)

    def check(self) -> None:
        """Assert the drafters' and its own invariants."""
        self._times.check()
        for drafter in self._drafters.values():
            drafter.check()

    def _worth(self, guess: Guess, drafter: Drafter) -> Guess:
        """The beginning of a guess that gives most tokens per second, if it gives more than there are without."""
        if self._always:
            return guess
        if not self._times.knows(self._running):  # first of all, what it takes without
            return NO_GUESS
        now = self._rate(0.0, 0, drafter)
        best, size, chances = now * GAIN, 0, 0.0
        hopeful = self._rate(sum(guess.chances), 1, drafter) > best  # all of them for the price of one
        ranked = sorted(guess.chances, reverse=True) if guess.parents else guess.chances
        for count, chance in enumerate(ranked if hopeful else (), 1):
            chances += chance
            rate = self._rate(chances, count, drafter)
            if rate > best:
                best, size = rate, count
        if not size and drafter.blind and guess.tokens:
            size = self._probe(drafter)
        return guess.likeliest(size) if size else NO_GUESS

    def _probe(self, drafter: Drafter) -> int:
        """Whether one draft is paid for already."""
        cost = self._seconds(1, drafter) - self._seconds(0, drafter)
        if self._purse[drafter.name] < cost:
            return 0
        self._purse[drafter.name] -= cost
        return 1

    def _rate(self, chances: float, drafts: int, drafter: Drafter) -> float:
        """Tokens per second with so many drafts more."""
        return (self._outlook.tokens + chances) / self._seconds(drafts, drafter)

    def _seconds(self, drafts: int, drafter: Drafter) -> float:
        """How long the step takes with so many drafts more."""
        times, outlook = self._times, self._outlook
        step = times.seconds(outlook.rows + drafts)
        gap = times.gap_waiting if outlook.drafts + drafts else times.gap_ahead
        guesses = max(outlook.guesses, drafts if drafter.seconds else 0)
        return step + gap + guesses * drafter.seconds

    def _take(self, guess: Guess, by: str) -> None:
        count = len(guess.tokens)
        self._spare -= count
        outlook = self._outlook
        outlook.rows += count
        outlook.drafts += count
        outlook.tokens += sum(guess.chances)
        if by and self._drafters[by].seconds:
            outlook.guesses = max(outlook.guesses, count)
