"""Stop strings: cutting the text off where one begins, and never giving out a part of one.

Knows strings only. The search is Knuth, Morris and Pratt's ("Fast pattern matching in strings", 1977): one pass over
the text whatever it holds, and what it must remember is exactly what must be held back.
"""

from __future__ import annotations

from collections.abc import Sequence


class StopStrings:
    """The text of one sequence up to the first stop string.

    First is the one that is complete first; of several complete at once, the longest. So what comes out, all calls
    together, never depends on how the text is split over calls.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        """Of strings that are not empty; none of them is allowed."""
        if not all(stops):
            raise ValueError("a stop string must not be empty")
        self._stops = tuple(dict.fromkeys(stops))
        self._fallbacks = [_fallbacks(stop) for stop in self._stops]
        self._states = [0] * len(self._stops)  # how much of each stop string the text ends with
        self._held = ""
        self._matched = False

    def push(self, text: str) -> tuple[str, bool]:
        """Take text; return what is certain now, and whether a stop string was found (then nothing follows)."""
        if self._matched:
            return "", True
        if not self._stops:
            return text, False
        seen = self._held + text
        for end in range(len(self._held), len(seen)):
            found = self._step(seen[end])
            if found:
                self._held, self._matched = "", True
                return seen[: end + 1 - found], True
        keep = len(seen) - max(self._states)
        self._held = seen[keep:]
        return seen[:keep], False

    def flush(self) -> str:
        """End the text; return what was held back."""
        held, self._held = self._held, ""
        self._states = [0] * len(self._stops)
        return held

    def check(self) -> None:
        """Assert that what is held back is the longest end of the text that begins a stop string."""
        assert len(self._held) == max(self._states, default=0) or self._matched, "held back and matched lengths differ"
        for stop, state in zip(self._stops, self._states, strict=True):
            assert state < len(stop) or self._matched, f"{stop!r} was found and not reported"
            assert self._matched or self._held.endswith(stop[:state]), f"the text does not end in {stop[:state]!r}"
            for size in range(state + 1, min(len(stop), len(self._held) + 1)):
                assert not self._held.endswith(stop[:size]), f"the text ends in {stop[:size]!r}, which was missed"

    def _step(self, character: str) -> int:
        """Take one character; return the length of the longest stop string that it completes, or 0."""
        found = 0
        for index, (stop, fallback) in enumerate(zip(self._stops, self._fallbacks, strict=True)):
            state = self._states[index]
            while state and stop[state] != character:
                state = fallback[state - 1]
            if stop[state] == character:
                state += 1
            self._states[index] = state
            if state == len(stop):
                found = max(found, state)
        return found


def _fallbacks(stop: str) -> list[int]:
    """For each beginning of `stop`, the length of the longest shorter one that it ends with."""
    lengths = [0] * len(stop)
    for index in range(1, len(stop)):
        state = lengths[index - 1]
        while state and stop[state] != stop[index]:
            state = lengths[state - 1]
        lengths[index] = state + (stop[state] == stop[index])
    return lengths
