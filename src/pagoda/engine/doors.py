"""What the engine asks of the rooms beyond it, as Protocols: the runner, and the tokenizer's way back to text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from pagoda.plan import Capacity, StepPlan, StepResult


class Runner(Protocol):
    """The machine room. Called from the engine's thread only."""

    @property
    def capacity(self) -> Capacity:
        """What it holds; never changes."""
        ...

    def submit(self, plan: StepPlan) -> Any:
        """Hand over a plan; returns a handle at once. Plans are executed strictly in the order handed over."""
        ...

    def finish(self, handle: Any) -> StepResult:
        """Wait for a plan. Called once for each handle, oldest first; raises what made the step fail."""
        ...


class Detokenizer(Protocol):
    """The text of one sequence as its tokens come."""

    def push(self, ids: Sequence[int]) -> str:
        """Text that is complete by these tokens; what they leave unfinished is kept."""
        ...

    def flush(self) -> str:
        """What was kept, at the end of the sequence."""
        ...


class Tokenizer(Protocol):
    """The part of a tokenizer that the engine uses."""

    @property
    def stop_ids(self) -> frozenset[int]:
        """Tokens by which the model ends its turn."""
        ...

    def detokenizer(self) -> Detokenizer:
        """A new one, for one sequence."""
        ...
