"""Strings that are one token wherever they occur: how a text is cut at them.

Knows nothing of where the strings come from or what the text between them becomes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping


def _pair(first: str, seconds: set[str]) -> str:
    """A pattern for a literal's first character and what may follow it; an empty string lets anything follow."""
    return re.escape(first) + ("" if "" in seconds else f"[{''.join(map(re.escape, sorted(seconds)))}]")


class Literals:
    """Finds fixed strings in a text: the leftmost first, of several there the longest. No literal is empty."""

    def __init__(self, ids: Mapping[str, int]) -> None:
        self._ids = dict(ids)
        self._lengths: dict[str, list[int]] = {}  # of the literals with this first character, longest first
        seconds: dict[str, set[str]] = {}
        for literal in self._ids:
            seconds.setdefault(literal[0], set()).add(literal[1:2])
        for first in seconds:
            self._lengths[first] = sorted({len(text) for text in self._ids if text[0] == first}, reverse=True)
        # Two characters tell most places apart, and are looked for without Python.
        self._start = re.compile("|".join(_pair(first, second) for first, second in seconds.items()) or r"(?!)")

    def find(self, text: str, begin: int = 0) -> tuple[int, int, int] | None:
        """Where the first literal at or after `begin` starts and ends, and its id; None if there is none."""
        while (start := self._start.search(text, begin)) is not None:
            begin = start.start()
            for size in self._lengths[text[begin]]:
                token_id = self._ids.get(text[begin : begin + size])
                if token_id is not None:
                    return begin, begin + size, token_id
            begin += 1
        return None

    def split(self, text: str) -> Iterator[str | int]:
        """Cut a text into the ids of literals and the runs of text between them, in order; no run is empty."""
        end = 0
        while (found := self.find(text, end)) is not None:
            start, stop, token_id = found
            if start > end:
                yield text[end:start]
            yield token_id
            end = stop
        if end < len(text):
            yield text[end:]
