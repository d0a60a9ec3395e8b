"""`Odds`: how often guesses of a kind were right lately."""

from __future__ import annotations

KEPT = 0.97
"""Weight of a trial against the next: the last thirty or so count."""


class Odds:
    """A decaying share of successes, drawn towards what was expected while there are few trials."""

    __slots__ = ("right", "trials")

    def __init__(self) -> None:
        self.right = 0.0
        self.trials = 0.0

    def add(self, right: bool) -> None:
        """One trial."""
        self.right = self.right * KEPT + right
        self.trials = self.trials * KEPT + 1

    def chance(self, expected: float, weight: float) -> float:
        """The share, with `weight` trials' worth of `expected` among them."""
        return (self.right + weight * expected) / (self.trials + weight)

    def check(self) -> None:
        """Assert that there were no more successes than trials."""
        assert 0 <= self.right <= self.trials + 1e-9, (self.right, self.trials)
