"""`RowTimes`: how long a step of so many rows takes, learned while running.

Knows times of steps in which each sequence has its newest token, and perhaps drafts: steps with part of a prompt are
of another kind. What counts is how times compare, so a machine that is slower for a while changes little: the ratio of
what was measured to what was expected moves all of them.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from itertools import pairwise

_NEW = 0.15
"""Weight of a measurement against what is known of its number of rows."""
_OUTLIER = 2.0
"""A step that took more than so many times what was expected was disturbed."""
_SLOPE = 0.3
"""Of a row's share: what one row more is thought to cost beyond the largest step seen. Optimistic: a trial tells."""
_HOPE = 0.05
"""Numbers of rows between those measured are thought to take so much less than these tell, and those measured once or a
few times so much less than that told, divided by their number: for the same reason.
"""


class RowTimes:
    """Seconds by number of rows, and how long the engine lets the machine room wait between steps."""

    __slots__ = ("_bases", "_measured", "_now", "_trials", "gap_ahead", "gap_waiting")

    def __init__(self) -> None:
        self._measured: dict[int, float] = {}
        self._trials: dict[int, int] = {}
        self._bases: list[int] = []
        """Numbers of rows that were measured, ascending."""
        self._now = 1.0
        self.gap_ahead = 0.0
        """Seconds from the end of a step to the next one's begin, if that was planned meanwhile."""
        self.gap_waiting = 0.0
        """The same if it could be planned only after the step."""

    def measured(self, rows: int, seconds: float) -> None:
        """A step of so many rows took so long in the machine room."""
        known = self._measured.get(rows)
        if known is None:
            self._measured[rows] = seconds / self._now
            self._trials[rows] = 1
            insort(self._bases, rows)
            return
        self._trials[rows] += 1
        ratio = min(max(seconds / (known * self._now), 1 / _OUTLIER), _OUTLIER)
        self._now *= 1 + _NEW * (ratio - 1)
        self._measured[rows] = known * (1 + max(_NEW / 2, 1 / self._trials[rows]) * (ratio - 1))

    def waited(self, seconds: float, ahead: bool) -> None:
        """The machine room had nothing to do for so long between two steps."""
        if ahead:
            self.gap_ahead += _NEW * (seconds - self.gap_ahead)
        else:
            self.gap_waiting += _NEW * (seconds - self.gap_waiting)

    def knows(self, rows: int) -> bool:
        """Whether steps of no more and of no fewer rows were measured."""
        return bool(self._bases) and self._bases[0] <= rows <= self._bases[-1]

    def seconds(self, rows: int) -> float:
        """What a step of so many rows takes, at least so many as the smallest that was measured."""
        return self.span(rows, 0)[0]

    def span(self, rows: int, more: int) -> list[float]:
        """Of steps of so many rows, of one more, and so on up to `more`."""
        last, found = rows + more, list[float]()
        at = max(bisect_left(self._bases, rows), 1)
        bases = self._bases[at - 1 :]
        times = [self._measured[base] * self._now * (1 - _HOPE / self._trials[base]) for base in bases]
        for i in range(len(times) - 2, -1, -1):  # more rows take no less: what says so was disturbed
            times[i] = min(times[i], times[i + 1])
        if bases[0] == rows:
            found.append(times[0])
        for (low, low_time), (high, high_time) in pairwise(zip(bases, times, strict=True)):
            for n in range(max(low + 1, rows), min(high, last + 1)):
                share = (n - low) / (high - low)
                found.append(max((low_time * (1 - share) + high_time * share) * (1 - _HOPE), low_time))
            if rows <= high <= last:
                found.append(high_time)
            if high >= last:
                break
        most, time = bases[-1], times[-1]
        found.extend(time * (1 + _SLOPE * (n - most) / most) for n in range(max(most + 1, rows), last + 1))
        return found

    def check(self) -> None:
        """Assert that times are positive and in order of their rows' numbers."""
        assert self._bases == sorted(self._measured) == sorted(self._trials), "numbers of rows"
        assert all(value > 0 for value in self._measured.values()), "a step that took no time"
        assert self._now > 0, "time stands still"
