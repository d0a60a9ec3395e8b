"""`Flights`: plans that were handed over and are not done yet, when they will be, and what those before them took.

Knows plans as amounts of work, and seconds on the engine's clock; no sequences. Plans are done in the order in which
they are handed over.
"""

from __future__ import annotations

from collections import deque
from typing import Any, NamedTuple

from pagoda.engine.cost import StepCost, Work, work_of
from pagoda.plan import StepPlan, StepResult


class Flight(NamedTuple):
    """A plan that was handed over."""

    plan: StepPlan
    handle: Any
    """The machine room's, for `finish`."""
    work: Work
    ahead: bool
    """Whether the machine room still had another one."""
    submitted: float


class Landing(NamedTuple):
    """How a step went."""

    error: float
    """Relative error of the seconds predicted."""
    gap: float | None
    """Seconds that the machine room had nothing to do before it; None if there was nothing to do."""


class Flights:
    """In order, oldest first. One thread's."""

    def __init__(self, cost: StepCost) -> None:
        self._cost = cost
        self._flights: deque[Flight] = deque()
        self._landed_at = 0.0
        self._rested_at: float | None = None
        self.busy_until = 0.0
        """When all will be done, as far as can be told."""

    def __len__(self) -> int:
        return len(self._flights)

    @property
    def drafting(self) -> bool:
        """Whether the newest has drafts: how long its sequences are depends on its result."""
        return bool(self._flights) and self._flights[-1].plan.drafts > 0

    def add(self, plan: StepPlan, handle: Any, now: float) -> None:
        """A plan was handed over."""
        flight = Flight(plan, handle, work_of(plan), bool(self._flights), now)
        self._flights.append(flight)
        self.busy_until = max(self.busy_until, now) + self._cost.predict(flight.work)

    def take(self) -> Flight:
        """The oldest; it is waited for."""
        return self._flights.popleft()

    def landed(self, flight: Flight, result: StepResult, now: float) -> Landing:
        """It is done: learn how long it took."""
        seconds = now - max(flight.submitted, self._landed_at) - result.guessing
        error = self._cost.observe(flight.work, seconds) if flight.work.rows else 0.0  # else it only moved pages
        gap = None if self._rested_at is None else max(now - self._rested_at - result.seconds, 0.0)
        self._landed_at = self._rested_at = now
        self.busy_until = now + sum(self._cost.predict(each.work) for each in self._flights)
        return Landing(error, gap)

    def idle(self) -> None:
        """There is nothing to do: time that passes now is nobody's loss."""
        self._rested_at = None
