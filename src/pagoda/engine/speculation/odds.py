"""`Odds`: how often guesses of a kind were right lately. `Bias`, `Trust`: against what was expected of them."""

from __future__ import annotations

KEPT = 0.97
"""Weight of a trial against the next: the last thirty or so count."""
FADES = 0.98
"""What a step leaves of trust and distrust in what the steps before showed."""


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


class Trust:
    """How much of what was promised was kept lately; at most all of it."""

    __slots__ = ("kept", "promised")

    def __init__(self) -> None:
        self.kept = self.promised = 0.0

    def add(self, kept: float, promised: float) -> None:
        """One promise, and what came of it."""
        self.kept += kept
        self.promised += promised

    def fade(self) -> None:
        """Time passes."""
        self.kept *= FADES
        self.promised *= FADES

    def share(self, weight: float) -> float:
        """The part of a promise to count on, with `weight` of kept promises added."""
        return min((self.kept + weight) / (self.promised + weight), 1.0)

    def check(self) -> None:
        """Assert that both are amounts."""
        assert self.kept >= 0, self.kept
        assert self.promised >= 0, self.promised


class Bias:
    """What became of trials of which each was expected to succeed by another chance."""

    __slots__ = ("expected", "right", "trials")

    def __init__(self) -> None:
        self.expected = 0.0
        self.right = 0.0
        self.trials = 0.0

    def add(self, right: bool, expected: float) -> None:
        """One trial."""
        self.expected = self.expected * KEPT + expected
        self.right = self.right * KEPT + right
        self.trials = self.trials * KEPT + 1

    def applied(self, chance: float, weight: float) -> float:
        """A chance, its odds changed as those of the trials were, and of `weight` both ways that were as expected."""
        right = chance * (self.right + weight) / (self.expected + weight)
        wrong = (1 - chance) * (self.trials - self.right + weight) / (self.trials - self.expected + weight)
        return right / (right + wrong)

    def check(self) -> None:
        """Assert that neither was more expected nor seen than there were trials."""
        assert 0 <= self.right <= self.trials + 1e-9, (self.right, self.trials)
        assert 0 <= self.expected <= self.trials + 1e-9, (self.expected, self.trials)
