"""`Groups`: the pages of every KV group, and which of them a sequence still needs.

In a group with a window of w positions, a row at position p sees p - w + 1 to p: pages that end before the window of
the next row are read by nobody any more. Where they were, tables and units have a hole. The first group has no window,
so a prefix always has its pages; of a model whose layers all have windows it is a group without layers. Knows no
sequence.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pagoda.cache.pool import PagePool
from pagoda.plan import first_page, most_pages

Pages = tuple[int, ...]
"""A unit: one page of each KV group, all of the same positions; or holes."""
HOLE = -1
"""In place of a page that is not there."""


class Groups:
    """A pool for each KV group.

    Args:
        pages: of each group.
        page_size: token slots of a page.
        windows: of each group, in positions; None: it keeps everything. Empty: none of them has one.
        chunk: most tokens of a sequence that one step writes.
    """

    def __init__(
        self, pages: Sequence[int], page_size: int, windows: Sequence[int | None] = (), chunk: int = 1
    ) -> None:
        self.page_size = page_size
        self.pools = tuple(PagePool(count) for count in pages)
        self.windows = tuple(windows) or (None,) * len(self.pools)
        assert len(self.windows) == len(self.pools), "a window is told for each group, or for none"
        assert self.windows[0] is None, "the first group keeps everything"
        self.windowed = tuple(group for group, window in enumerate(self.windows) if window is not None)
        """Groups that have one."""
        self.unwindowed = tuple(group for group, window in enumerate(self.windows) if window is None)
        """And that have none."""
        self._chunk = chunk
        self._whole = (0,) * len(self.pools)

    def __len__(self) -> int:
        return len(self.pools)

    def pages_for(self, tokens: int) -> int:
        """Pages of a group without a window that hold this many tokens."""
        return -(-tokens // self.page_size)

    def begin(self, group: int, start: int) -> int:
        """The first page of a group that rows from position `start` on read or write."""
        return first_page(self.windows[group], start, self.page_size)

    def begins(self, start: int) -> tuple[int, ...]:
        """`begin` of each group."""
        if not self.windowed:
            return self._whole
        return tuple(self.begin(group, start) for group in range(len(self.pools)))

    def span(self, group: int, tokens: int) -> int:
        """Most pages that a sequence of so many tokens holds at once: a window, and what one step writes after it."""
        return most_pages(self.windows[group], tokens, self._chunk, self.page_size)

    def kept(self, group: int, tokens: int) -> int:
        """Pages of a group by which a prefix of so many tokens is found again: those that the token after it sees, and
        the token after its last whole page.
        """
        return self.pages_for(tokens) - self.begin(group, tokens // self.page_size * self.page_size)

    def cut(self, units: Sequence[Pages], start: int) -> list[Pages]:
        """Units with holes before the windows of a row at `start`."""
        if not self.windowed:
            return list(units)
        begins = self.begins(start)
        return [
            tuple(page if index >= begin else HOLE for page, begin in zip(unit, begins, strict=True))
            for index, unit in enumerate(units)
        ]

    def whole_to(self, units: Sequence[Pages], length: int) -> int:
        """The longest prefix, up to `length` tokens, after which every group's window is there."""
        again = bool(self.windowed)
        while again:
            again = False
            for group in self.windowed:
                needed = range(self.begin(group, length), self.pages_for(length))
                missing = next((index for index in needed if units[index][group] == HOLE), None)
                if missing is not None:  # it is needed after any of its own tokens too
                    length, again = missing * self.page_size, True
        return length

    # Every page of a unit.

    def share(self, unit: Pages) -> None:
        """One more table holds them."""
        for pool, page in zip(self.pools, unit, strict=True):
            if page != HOLE:
                pool.share(page)

    def drop(self, group: int, pages: Iterable[int]) -> None:
        """One table fewer holds these pages of a group."""
        for page in pages:
            if page != HOLE:
                self.pools[group].drop(page)

    def keep(self, unit: Pages) -> None:
        """One more node that may be evicted holds them."""
        for pool, page in zip(self.pools, unit, strict=True):
            if page != HOLE:
                pool.keep(page)

    def let_go(self, unit: Pages) -> None:
        """One such node fewer holds them."""
        for pool, page in zip(self.pools, unit, strict=True):
            if page != HOLE:
                pool.let_go(page)

    def pin(self, unit: Pages) -> None:
        """One more pin holds them."""
        for pool, page in zip(self.pools, unit, strict=True):
            if page != HOLE:
                pool.pin(page)

    def unpin(self, unit: Pages) -> None:
        """One pin fewer holds them."""
        for pool, page in zip(self.pools, unit, strict=True):
            if page != HOLE:
                pool.unpin(page)
