"""`Loop`: notices that an output goes round in a circle: its last tokens are one run, over and over.

Knows token ids only.
"""

from __future__ import annotations

from collections.abc import Sequence

LONGEST = 64
"""Tokens of the longest run that is noticed."""
LEAST_TOKENS = 16
"""A run of few tokens must come back until so many are the same: "ha ha ha" and rows of dashes are no loops yet."""


class Loop:
    """Looks at an output as it grows; each token costs a comparison for each length of a run."""

    __slots__ = ("_same", "_times")

    def __init__(self, times: int) -> None:
        self._times = times
        self._same = [0] * (LONGEST + 1)

    def closes(self, output: Sequence[int]) -> bool:
        """Whether the newest token makes the output end in one run, as many times over as is allowed at most."""
        newest, last, found = output[-1], len(output) - 1, False
        for length in range(1, min(LONGEST, last) + 1):
            if output[last - length] == newest:
                self._same[length] += 1
                found |= self._same[length] >= max(length * (self._times - 1), LEAST_TOKENS - length)
            else:
                self._same[length] = 0
        return found
