"""`PromptSpeed`: how long a prompt's token takes here and now, from the steps that were mostly prompts."""

from __future__ import annotations

PROMPT_ROWS = 64
"""A step of so many rows is bound by arithmetic, as a prompt's is: its time is about linear in its rows."""
NEWEST = 0.1
"""What the newest step counts in the mean."""


class PromptSpeed:
    """A moving mean of seconds per row. Written by one thread, read from any."""

    def __init__(self) -> None:
        self.token_s: float | None = None
        """Seconds per token of a prompt; None until a step has shown it."""

    def add(self, rows: int, seconds: float) -> None:
        """A step of so many rows took so long."""
        if rows < PROMPT_ROWS:
            return
        each, mean = seconds / rows, self.token_s
        self.token_s = each if mean is None else mean + NEWEST * (each - mean)

    def check(self) -> None:
        """Assert that it is no nonsense."""
        assert self.token_s is None or self.token_s >= 0, f"{self.token_s} s for a token"
