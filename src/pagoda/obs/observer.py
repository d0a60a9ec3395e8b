"""What the engine tells whoever watches. Implementations are quick and never raise.

Called on the engine's thread, but for `refused`, which comes on the thread of whoever asked, and the last `emitted` of
requests that `close` or the watchdog ends, which come on theirs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from pagoda.plan import StepPlan, StepResult
from pagoda.types import CacheCause, GenerateRequest, TokenEvent


@dataclass(frozen=True, slots=True)
class EngineState:
    """Gauges, read after each step."""

    running: int = 0
    """Sequences that hold pages."""
    waiting: int = 0
    """Sequences that hold none."""
    pages_used: int = 0
    pages_total: int = 0
    pages_cached: int = 0
    """Pages that hold prefixes and nothing else; not among those used."""
    pages_pinned: int = 0
    """Pages that pins hold; they are among those used."""
    step_error: float = 0.0
    """Relative error of the seconds predicted for this step: (predicted - actual) / actual."""


class Observer(Protocol):
    """Everything that can be watched."""

    def arrived(self, request: GenerateRequest) -> None:
        """A request was accepted into the queue."""
        ...

    def refused(self, cause: str) -> None:
        """A request was not accepted; `cause` is one of a few fixed words."""
        ...

    def stepped(self, plan: StepPlan, result: StepResult, state: EngineState) -> None:
        """A step was finished and applied."""
        ...

    def emitted(self, event: TokenEvent, gap: float | None) -> None:
        """An event left the engine; `gap` is the seconds since the sequence's last token (ITL), None for its first."""
        ...

    def preempted(self, request_id: str) -> None:
        """A sequence lost its pages and will be recomputed."""
        ...

    def matched(self, request: GenerateRequest, found: int, cause: CacheCause) -> None:
        """A request was admitted: so many tokens of its prompt were in the cache, and why no more."""
        ...


class NoObserver:
    """Watches nothing."""

    def arrived(self, request: GenerateRequest) -> None:
        """Nothing."""

    def refused(self, cause: str) -> None:
        """Nothing."""

    def stepped(self, plan: StepPlan, result: StepResult, state: EngineState) -> None:
        """Nothing."""

    def emitted(self, event: TokenEvent, gap: float | None) -> None:
        """Nothing."""

    def preempted(self, request_id: str) -> None:
        """Nothing."""

    def matched(self, request: GenerateRequest, found: int, cause: CacheCause) -> None:
        """Nothing."""
