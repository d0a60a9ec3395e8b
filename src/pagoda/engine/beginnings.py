"""`Beginnings`: which beginnings of prompts those under way are about to compute, so that a burst of prompts that begin
alike is not taken for as much work as its prompts are long.

Knows tokens in runs of a page, ranks and names; no pages and no time. A beginning is told by the hash of its last run
and of the beginning before it: where two hashes fall together by chance, a forecast is off, and nothing else.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from math import inf


class Beginnings:
    """Of the prompts under way, all that is not in the cache yet. From any thread."""

    def __init__(self, page_size: int) -> None:
        self._size = page_size
        self._lock = threading.Lock()
        self._first: dict[int, tuple[int, float]] = {}
        """By how many a beginning is wanted, and the rank of the most urgent of them."""
        self._of: dict[str, list[int]] = {}

    def ahead(self, tenant: str, prompt: tuple[int, ...], found: int, last: float) -> tuple[int, float]:
        """What those will have computed of a prompt who come no later than a rank, besides what was found.

        Returns:
            How many of its tokens will be in the cache, and the rank of whoever will have put them there.
        """
        rank = -inf
        with self._lock:
            for end, beginning in self._runs(tenant, prompt) if self._first else ():
                if end > found:
                    count, first = self._first.get(beginning, (0, last))
                    if not count or first > last:
                        break
                    found, rank = end, max(rank, first)
        return found, rank

    def add(self, request_id: str, tenant: str, prompt: tuple[int, ...], found: int, rank: float) -> None:
        """A request will compute its prompt, but for what is there already."""
        mine = [beginning for end, beginning in self._runs(tenant, prompt) if end > found]
        if not mine:
            return
        with self._lock:
            self._of[request_id] = mine
            for beginning in mine:
                count, first = self._first.get(beginning, (0, rank))
                self._first[beginning] = count + 1, min(first, rank)

    def remove(self, request_id: str) -> None:
        """Its prompt is computed, or will not be; nothing if it was removed before."""
        with self._lock:
            for beginning in self._of.pop(request_id, ()):
                count, first = self._first[beginning]
                if count > 1:
                    self._first[beginning] = count - 1, first
                else:
                    del self._first[beginning]

    def _runs(self, tenant: str, prompt: tuple[int, ...]) -> Iterator[tuple[int, int]]:
        """The end of each whole run before the last token, which is always computed, and the hash of all before it."""
        beginning, size = hash(tenant), self._size
        for end in range(size, len(prompt), size):
            beginning = hash((beginning, prompt[end - size : end]))
            yield end, beginning

    def check(self) -> None:
        """Assert that each beginning is wanted by as many as want it."""
        counts: dict[int, int] = {}
        for mine in self._of.values():
            for beginning in mine:
                counts[beginning] = counts.get(beginning, 0) + 1
        assert counts == {beginning: count for beginning, (count, _) in self._first.items()}, "miscounted"
