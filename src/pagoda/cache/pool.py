"""The pages of one KV group: which are free, and who holds each of the others.

A page is held by page tables, by nodes of the radix tree that may be evicted, and by pins. Knows nothing of sequences,
positions or memory: a page is a number.
"""

from __future__ import annotations

from collections.abc import Mapping


class PagePool:
    """Reference-counted pages 0 to `pages` - 1."""

    __slots__ = ("_free", "_kept", "_pinned", "_uses", "fixed", "idle", "pages")

    def __init__(self, pages: int) -> None:
        self.pages = pages
        self.idle = 0
        """Pages that only evictable nodes hold: as good as free."""
        self.fixed = 0
        """Pages that a pin holds."""
        self._uses = [0] * pages
        self._kept = [0] * pages
        self._pinned = [0] * pages
        self._free = list(range(pages - 1, -1, -1))  # a stack: a page just freed is the likeliest still in a CPU cache

    @property
    def free(self) -> int:
        """Pages that nobody holds."""
        return len(self._free)

    @property
    def available(self) -> int:
        """Pages that are free, or would be if the tree were evicted."""
        return len(self._free) + self.idle

    def take(self) -> int:
        """A free page, now held by one table. The caller has looked at `free` before."""
        page = self._free.pop()
        self._uses[page] = 1
        return page

    def share(self, page: int) -> None:
        """One more table holds a page that is held already."""
        if not self._uses[page] and not self._pinned[page]:
            assert self._kept[page], f"page {page} is shared but nobody holds it"
            self.idle -= 1
        self._uses[page] += 1

    def drop(self, page: int) -> None:
        """One table fewer holds the page; it is free when nobody does."""
        assert self._uses[page] > 0, f"page {page} is dropped but no table holds it"
        self._uses[page] -= 1
        if not self._uses[page] and not self._pinned[page]:
            self._leave(page)

    def keep(self, page: int) -> None:
        """One more evictable node holds a page that is held already."""
        assert self._held(page), f"page {page} is kept but nobody holds it"
        self._kept[page] += 1

    def let_go(self, page: int) -> None:
        """One evictable node fewer holds the page."""
        assert self._kept[page] > 0, f"page {page} is let go but no node holds it"
        self._kept[page] -= 1
        if not (self._kept[page] or self._uses[page] or self._pinned[page]):
            self.idle -= 1
            self._free.append(page)

    def pin(self, page: int) -> None:
        """One more pin holds a page that is held already."""
        assert self._held(page), f"page {page} is pinned but nobody holds it"
        if not self._pinned[page]:
            self.fixed += 1
            self.idle -= not self._uses[page]
        self._pinned[page] += 1

    def unpin(self, page: int) -> None:
        """One pin fewer holds the page."""
        assert self._pinned[page] > 0, f"page {page} is unpinned but no pin holds it"
        self._pinned[page] -= 1
        if not self._pinned[page]:
            self.fixed -= 1
            if not self._uses[page]:
                self._leave(page)

    def shared(self, page: int) -> bool:
        """Whether more than one table holds the page, or one and the tree, so that none may write to it."""
        return self._uses[page] > 1 or self._kept[page] > 0 or self._pinned[page] > 0

    def in_use(self, page: int) -> bool:
        """Whether a table or a pin holds the page, so that eviction would not free it."""
        return self._uses[page] > 0 or self._pinned[page] > 0

    def tabled(self, page: int) -> bool:
        """Whether a table holds the page."""
        return self._uses[page] > 0

    def alone(self, page: int) -> bool:
        """Whether one table holds the page, and else at most evictable nodes."""
        return self._uses[page] == 1 and not self._pinned[page]

    def holds(self, page: int) -> tuple[int, int, int]:
        """How many tables, evictable nodes and pins hold the page."""
        return self._uses[page], self._kept[page], self._pinned[page]

    def map(self) -> str:
        """One letter a page: `.` free, `c` cached, `u` used by one table, `s` shared, `p` pinned. From any thread."""
        states = zip(tuple(self._uses), tuple(self._kept), tuple(self._pinned), strict=True)
        return "".join(_letter(*holds) for holds in states)

    def check(self, uses: Mapping[int, int], kept: Mapping[int, int], pinned: Mapping[int, int]) -> None:
        """Assert that each page is held as often as these say, and that the rest, and only they, are free."""
        for page in range(self.pages):
            found, wanted = self.holds(page), (uses.get(page, 0), kept.get(page, 0), pinned.get(page, 0))
            assert found == wanted, (
                f"page {page} counts {found} holds by tables, nodes and pins, and there are {wanted}"
            )
        free = set(self._free)
        assert len(free) == len(self._free), "a page is twice in the free list"
        assert free == {page for page in range(self.pages) if not self._held(page)}, "free list and counts differ"
        idle = sum(self._kept[page] > 0 and not self.in_use(page) for page in range(self.pages))
        assert self.idle == idle, f"{self.idle} pages count as idle, and {idle} are"
        assert self.fixed == sum(map(bool, self._pinned)), "pages with a pin are miscounted"

    def _held(self, page: int) -> bool:
        return self._uses[page] > 0 or self._kept[page] > 0 or self._pinned[page] > 0

    def _leave(self, page: int) -> None:
        """The last table or pin has gone."""
        if self._kept[page]:
            self.idle += 1
        else:
            self._free.append(page)


def _letter(uses: int, kept: int, pinned: int) -> str:
    if pinned:
        return "p"
    if uses:
        return "s" if uses + kept > 1 else "u"
    return "c" if kept else "."
