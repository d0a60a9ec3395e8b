"""`GuessingDrafter`: the runner's own drafter guesses, a smaller model or the first layers of the model itself.

Knows how often its guesses are right and what they cost; the runner makes them (`runner.guessing`).
"""

from __future__ import annotations

from collections.abc import Sequence as Many

from pagoda.engine.request import Sequence
from pagoda.engine.speculation.drafter import Guess
from pagoda.engine.speculation.odds import Odds
from pagoda.plan import GUESS

_EXPECTED = 0.6
"""How often a guess is right before anything was seen."""
_WEIGHT = 4.0
_NEW = 0.2
"""Weight of a measurement of what a token costs."""


class GuessingDrafter:
    """Drafts that are filled in on their way through the machine room."""

    blind = True

    def __init__(self, name: str) -> None:
        self.name = name
        self.seconds = 1e-9  # the first trial tells
        self._all = Odds()
        self._odds: dict[int, Odds] = {}

    def look(self, sequences: Many[Sequence]) -> None:
        """The runner has the tokens."""

    def guess(self, sequence: Sequence, most: int) -> Guess:
        """As many as may be: each is as likely to be right as the one before, if that was."""
        each = self._odds.get(sequence.id, self._all).chance(self._all.chance(_EXPECTED, _WEIGHT), _WEIGHT)
        return Guess((GUESS,) * most, tuple(each ** (i + 1) for i in range(most)))

    def verified(self, sequence: Sequence, asked: int, right: int) -> None:
        """The first that was wrong is the last that says anything."""
        odds = self._odds.setdefault(sequence.id, Odds())
        for i in range(min(asked, right + 1)):
            odds.add(i < right)
            self._all.add(i < right)

    def took(self, tokens: int, seconds: float) -> None:
        """What a token costs now."""
        each = seconds / tokens
        self.seconds = each if self.seconds < 1e-8 else self.seconds + _NEW * (each - self.seconds)

    def forget(self, sequence: Sequence) -> None:
        """Its odds are part of everybody's already."""
        self._odds.pop(sequence.id, None)

    def check(self) -> None:
        """Assert that odds are odds and time passes."""
        self._all.check()
        for odds in self._odds.values():
            odds.check()
        assert self.seconds > 0, "guesses for nothing"
