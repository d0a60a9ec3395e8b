"""`Controller`: which sequences get drafts in a step, how many, and whose; none where they do not pay.

A step of R sequences gives R tokens in the time of R rows. A draft makes it longer and adds its chance of being right.
The drafts that are taken are those with the best chances, of all sequences together, and so many that tokens per second
are most. A drafter that is not worth asking is tried now and then, for less than a hundredth of the time.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence as Many
from dataclasses import dataclass, field
from math import ceil, inf

from pagoda.engine.request import Sequence
from pagoda.engine.speculation.drafter import MOST_DRAFTS, NO_GUESS, Drafter, Guess
from pagoda.engine.speculation.odds import Trust
from pagoda.engine.speculation.row_times import RowTimes
from pagoda.plan import GUESS, MOST_OF_STEP, StepPlan, StepResult

GAIN = 1.03
"""Drafts must promise so many times the tokens per second: what is learned is not exact."""
DOUBTS = 8.0
"""Right drafts' worth of trust before any was verified."""
PROBES = 0.005
"""Share of the time that may go into trying what does not seem to pay."""


@dataclass(slots=True)
class _Choice:
    """Drafts for a step, and what they promise."""

    rate: float
    """Tokens per second."""
    counts: dict[int, int] = field(default_factory=dict)
    """How many of each guess, by its place in the list."""


@dataclass(frozen=True, slots=True)
class _Offer:
    """What a drafter guesses for a sequence."""

    sequence: Sequence
    drafter: Drafter
    guess: Guess


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
        self._running = 0
        self._taken: dict[int, tuple[str, Guess]] = {}
        self._trust = {name: Trust() for name in self._drafters}
        """Of the drafts that are taken more are wrong than of all: those that seem better than they are, are taken."""
        self._purse = dict.fromkeys(self._drafters, 0.0)
        """Seconds that each drafter may be tried for."""

    @property
    def drafters(self) -> tuple[Drafter, ...]:
        """Whom it asks."""
        return tuple(self._drafters.values())

    def open(self, singles: Many[Sequence], rows: int, alone: bool, within: float = inf) -> bool:
        """A step begins.

        Args:
            singles: who has one token due.
            rows: of the step, at most.
            alone: nobody else wants any of them.
            within: seconds that the step may take: not all who wait for it have drafts in it.

        Returns:
            Whether to go on. False: rather wait for the tokens in flight, which tell what to draft.
        """
        self._taken, self._running = {}, len(singles)
        spare = min(rows - self._running, MOST_OF_STEP) if alone and self._drafters else 0
        willing = [sequence for sequence in singles if sequence.speculates] if spare > 0 else []
        if not willing:
            return True
        for drafter in self._drafters.values():
            drafter.look(willing)
        offers = self._offers(willing, spare)
        if self._always:
            self._take_all(offers, spare)
            return True
        if not offers or not self._times.knows(self._running):  # first of all, what it takes without
            return True
        spare = bisect_right(self._times.span(self._running, spare), within) - 1
        if spare <= 0:
            return True
        plain = self._running / (self._times.seconds(self._running) + self._times.gap_ahead)
        best, chosen = _Choice(plain * GAIN), list[_Offer]()
        for option in _options(offers):
            choice = self._choose(option, spare)
            if choice.rate > best.rate:
                best, chosen = choice, option
        if any(each.guess.sure < 1 for each in offers) and self._waiting(offers, spare) > best.rate * GAIN:
            return False
        for at, count in best.counts.items():
            self._take(chosen[at], count)
        if not best.counts:
            self._probe(offers)
        return True

    def draft(self, sequence: Sequence) -> tuple[str, Guess]:
        """(whose, which) drafts a sequence gets whose newest token is computed in this step."""
        return self._taken.get(sequence.id, ("", NO_GUESS))

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
        for name, trust in self._trust.items():
            trust.fade()
            self._purse[name] += PROBES * result.seconds
        if plan.drafts:
            guesses = {chunk.drafter: chunk.tokens.count(GUESS) for chunk in plan.chunks}
            for name, most in guesses.items():
                if most:
                    self._drafters[name].took(most, result.guessing)

    def verified(self, sequence: Sequence, drafter: str, asked: int, right: int) -> None:
        """Of a sequence's drafts, so many were right."""
        self._drafters[drafter].verified(sequence, asked, right)
        self._trust[drafter].add(right, sum(self.draft(sequence)[1].chances))

    def forget(self, sequence: Sequence) -> None:
        """A sequence has ended."""
        for drafter in self._drafters.values():
            drafter.forget(sequence)

    def check(self) -> None:
        """Assert the drafters' and its own invariants."""
        self._times.check()
        for drafter in self._drafters.values():
            drafter.check()
        for trust in self._trust.values():
            trust.check()

    def _offers(self, willing: list[Sequence], spare: int) -> list[_Offer]:
        """All guesses, those of one sequence together."""
        offers = []
        for sequence in willing:
            most = min(spare, self._most, sequence.limit - sequence.known - 1)
            for drafter in self._drafters.values() if most > 0 else ():
                if (guess := drafter.guess(sequence, most)).tokens:
                    offers.append(_Offer(sequence, drafter, guess))
        return offers

    def _choose(self, offers: list[_Offer], spare: int) -> _Choice:
        """The drafts with the best chances, and so many that tokens per second are most.

        Of a guess no draft is likelier than those before it: so these are the beginnings of guesses.
        """
        ranked = sorted((-chance, at) for at, each in enumerate(offers) for chance in each.guess.chances)[:spare]
        seconds = self._times.span(self._running, len(ranked))
        best, size = 0.0, 0
        trust = {name: trust.share(DOUBTS + self._running) for name, trust in self._trust.items()}
        tokens, gap, counts, guessing = float(self._running), self._times.gap_waiting, [0] * len(offers), 0.0
        for count, (chance, at) in enumerate(ranked, 1):
            tokens -= chance * trust[offers[at].drafter.name]
            counts[at] += 1
            if each := offers[at].drafter.seconds:
                guessing = max(guessing, counts[at] * each)
            rate = tokens / (seconds[count] + gap + guessing)
            if rate > best:
                best, size = rate, count
        choice = _Choice(best)
        for _, at in ranked[:size]:
            choice.counts[at] = choice.counts.get(at, 0) + 1
        return choice

    def _waiting(self, offers: list[_Offer], spare: int) -> float:
        """Tokens per second if the tokens in flight are waited for: they turn out as guessed, or nothing is drafted."""
        trust = min(trust.share(DOUBTS + self._running) for trust in self._trust.values())
        ranked = sorted((-chance / o.guess.sure, o.guess.sure) for o in offers for chance in o.guess.chances)[:spare]
        seconds = self._times.span(self._running, len(ranked))
        best, tokens, rows, gap = 0.0, float(self._running), 0.0, 2 * self._times.gap_waiting
        for chance, sure in ranked:
            tokens -= chance * sure * trust
            rows += sure
            best = max(best, tokens / (seconds[ceil(rows)] + gap))
        return best

    def _take(self, offer: _Offer, count: int) -> None:
        self._taken[offer.sequence.id] = (offer.drafter.name, offer.guess.likeliest(count))

    def _take_all(self, offers: list[_Offer], spare: int) -> None:
        """The most promising guess of each sequence, as far as there are rows."""
        best: dict[int, _Offer] = {}
        for each in offers:
            before = best.get(each.sequence.id)
            if before is None or sum(each.guess.chances) > sum(before.guess.chances):
                best[each.sequence.id] = each
        for each in best.values():
            if spare > 0:
                self._take(each, min(spare, len(each.guess.tokens)))
                spare -= len(each.guess.tokens)

    def _probe(self, offers: list[_Offer]) -> None:
        """One draft of who can only learn from drafts, if it is paid for already."""
        for each in offers:
            if each.drafter.blind:
                row = self._times.seconds(self._running + 1) - self._times.seconds(self._running)
                cost = row + self._times.gap_waiting - self._times.gap_ahead + each.drafter.seconds
                if self._purse[each.drafter.name] >= cost:
                    self._purse[each.drafter.name] -= cost
                    self._take(each, 1)
                    return


def _options(offers: list[_Offer]) -> list[list[_Offer]]:
    """Each drafter's offers alone; and of each sequence the one that is surer of its first draft."""
    by_name: dict[str, list[_Offer]] = {}
    surest: dict[int, _Offer] = {}
    for each in offers:
        by_name.setdefault(each.drafter.name, []).append(each)
        before = surest.get(each.sequence.id)
        if before is None or each.guess.chances[0] > before.guess.chances[0]:
            surest[each.sequence.id] = each
    alone = list(by_name.values())
    return alone if len(alone) == 1 else [*alone, list(surest.values())]
