"""`StepCost`: how long a step will take, learned from those that were done.

Knows counts and seconds; nothing of requests. A step's seconds are taken to be linear in four features, whose weights
recursive least squares follows, as a Kalman filter of weights that drift (Ljung 1999, "System Identification", section
11.6), in relative errors: a short step counts as much as a long one. A residual beyond three times the usual one counts
as so much noisier (Huber 1964), so that a neighbour's burst moves little where much is known, and a lasting change soon
becomes the usual.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from pagoda.plan import StepPlan

PRIOR = (2e-3, 5e-4, 1e-3, 2e-4)
"""Seconds of each feature before anything was seen: a small model on two cores."""
LEAST = 1e-2
"""No weight falls below so much of its prior: a row always costs something."""
DOUBT = 25.0
"""Variance of the weights at first, in units of the prior."""
DRIFT = 3e-5
"""By how much a step doubts again what it tells of: the variance of its prediction, relative. What it tells nothing of
is left as it was (directional forgetting): so a long time of steps that are all alike loses nothing.
"""
NOISE = 0.01
"""Variance of a step's relative error."""
CUT = 3.0
SMOOTH = 0.05
KILO = 1e-3


class Work(NamedTuple):
    """What a step computes."""

    sampled: int
    """Rows whose logits are wanted."""
    rows: int
    attended: int
    """Sum over the rows of the positions each attends to."""

    def features(self) -> tuple[float, float, float, float]:
        """What the seconds are linear in."""
        return 1.0, self.sampled, self.rows, self.attended * KILO


PROMPT = Work(1, 256, 256 * 128)
"""A prompt's chunk, as it usually is."""
PROMPT_ROWS = 64
"""So many rows more than are sampled show what a prompt's row takes."""


def work_of(plan: StepPlan) -> Work:
    """The work of a plan."""
    sampled = rows = attended = 0
    for chunk in plan.chunks:
        count = len(chunk.tokens)
        rows += count
        sampled += chunk.samples + chunk.drafts
        attended += count * (2 * chunk.start + count + 1) // 2
    return Work(sampled, rows, attended)


class StepCost:
    """Predicts seconds. One thread observes; any thread may predict."""

    def __init__(self) -> None:
        self.weights = PRIOR
        """Seconds of each feature; never negative."""
        self._spread = [[DOUBT if i == j else 0.0 for j in range(4)] for i in range(4)]
        self._usual = 0.3
        self.error = 0.0
        """Mean relative error of late, a fraction of the seconds that it took."""
        self.steps = 0
        """How many were observed."""
        self._prompts_seen = False

    def predict(self, work: Work) -> float:
        """Seconds of a step."""
        return _dot(self.weights, work.features())

    def row(self, context: float) -> float:
        """Seconds of one more row of a prompt that attends to so many positions."""
        return self.weights[2] + self.weights[3] * context * KILO

    @property
    def token_s(self) -> float | None:
        """Seconds of a prompt's token, in a step of its own; None until a step was seen that was mostly a prompt."""
        return self.predict(PROMPT) / PROMPT.rows if self._prompts_seen else None

    def observe(self, work: Work, seconds: float) -> float:
        """Learn from a step that was done.

        Returns:
            The relative error of what was predicted: (predicted - seconds) / seconds.
        """
        seconds = max(seconds, 1e-6)
        predicted = self.predict(work)
        wrong = (predicted - seconds) / seconds
        self.error += (abs(wrong) - self.error) * (SMOOTH if self.steps >= 1 / SMOOTH else 1 / (self.steps + 1))
        self.steps += 1
        self._prompts_seen |= work.rows - work.sampled >= PROMPT_ROWS
        self._learn(work, seconds, predicted)
        return wrong

    def _learn(self, work: Work, seconds: float, predicted: float) -> None:
        """One step of the filter: weights in units of the prior, steps in units of the seconds that each took."""
        x = [value * prior / seconds for value, prior in zip(work.features(), PRIOR, strict=True)]
        residual = 1 - predicted / seconds
        most = CUT * self._usual
        self._usual += SMOOTH * (min(abs(residual), 2 * most) - self._usual)
        noise = NOISE * max(abs(residual) / most, 1.0)
        px = [_dot(row, x) for row in self._spread]
        told, norm = _dot(px, x), _dot(x, x)
        gain = [value / (noise + told) for value in px]
        units = [w / prior + k * residual for w, prior, k in zip(self.weights, PRIOR, gain, strict=True)]
        known = told * noise / (noise + told) / norm  # what is left of the doubt along x
        drift = max(min(DRIFT, (DOUBT - known) * norm), 0.0) / norm**2
        for i in range(4):
            for j in range(i + 1):
                value = self._spread[i][j] - gain[i] * px[j] + drift * x[i] * x[j]
                self._spread[i][j] = self._spread[j][i] = value
            self._spread[i][i] = max(self._spread[i][i], 0.0)  # rounding may take it below
        self.weights = tuple(  # type: ignore[assignment]
            prior * unit for unit, prior in zip(self._raised(units), PRIOR, strict=True)
        )

    def _raised(self, units: list[float]) -> list[float]:
        """Weights below the least are raised to it, and the others moved with them as the spread says, so that what is
        known of their sums stays (Simon and Chia 2002, "Kalman Filtering with State Equality Constraints"). Cut off
        alone, one would take the others with it, ever further from what is seen.
        """
        spread = self._spread
        for _ in units:
            lowest = min(range(4), key=units.__getitem__)
            lack, row = LEAST - units[lowest], spread[lowest]
            if lack <= 0:
                break
            shares = [each / row[lowest] for each in row] if row[lowest] > 0 else [0.0] * 4
            units = [unit + share * lack for unit, share in zip(units, shares, strict=True)]
            units[lowest] = LEAST
            spread = [
                [each - share * other for each, other in zip(line, row, strict=True)]
                for line, share in zip(spread, shares, strict=True)
            ]
        return [max(unit, LEAST) for unit in units]

    def check(self) -> None:
        """Assert that the weights are sound, and the spread is symmetric, positive and no wider than at first."""
        assert all(weight >= LEAST * prior for weight, prior in zip(self.weights, PRIOR, strict=True)), self.weights
        assert self.error >= 0
        for i in range(4):
            assert 0 <= self._spread[i][i] <= 2 * DOUBT, self._spread
            assert all(self._spread[i][j] == self._spread[j][i] for j in range(i)), self._spread


def _dot(a: Iterable[float], b: Iterable[float]) -> float:
    return sum(x * y for x, y in zip(a, b, strict=True))
