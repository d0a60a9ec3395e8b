"""The pages of one KV group: which are free, and how many page tables hold each of the others.

Knows nothing of sequences, positions or memory: a page is a number.
"""

from __future__ import annotations

from collections.abc import Mapping


class PagePool:
    """Reference-counted pages 0 to `pages` - 1."""

    __slots__ = ("_free", "_uses", "pages")

    def __init__(self, pages: int) -> None:
        self.pages = pages
        self._uses = [0] * pages
        self._free = list(range(pages - 1, -1, -1))  # a stack: a page just freed is the likeliest still in a CPU cache

    @property
    def free(self) -> int:
        """Pages that nobody holds."""
        return len(self._free)

    def take(self) -> int:
        """A free page, now held once. The caller has looked at `free` before."""
        page = self._free.pop()
        self._uses[page] = 1
        return page

    def share(self, page: int) -> None:
        """One more table holds a page that is held already."""
        assert self._uses[page] > 0, f"page {page} is shared but nobody holds it"
        self._uses[page] += 1

    def drop(self, page: int) -> None:
        """One table fewer holds the page; it is free when none does."""
        assert self._uses[page] > 0, f"page {page} is dropped but nobody holds it"
        self._uses[page] -= 1
        if not self._uses[page]:
            self._free.append(page)

    def shared(self, page: int) -> bool:
        """Whether more than one table holds the page, so that none may write to it."""
        return self._uses[page] > 1

    def check(self, uses: Mapping[int, int]) -> None:
        """Assert that each page is held as often as `uses` says, and that the rest, and only they, are free."""
        for page, count in enumerate(self._uses):
            assert count == uses.get(page, 0), (
                f"page {page} counts {count} uses, tables hold it {uses.get(page, 0)} times"
            )
        free = set(self._free)
        assert len(free) == len(self._free), "a page is twice in the free list"
        assert free == {page for page, count in enumerate(self._uses) if not count}, "free list and counts differ"
