"""`Growth`: gives one page table the pages it is to write, and takes those it has passed.

Counts what is missing first, so that nothing changes if pages run out. Pages come from those that are free, then from
the tree: whole prefixes in groups that keep everything, single pages of windows in the others.
"""

from __future__ import annotations

from collections.abc import Sequence

from pagoda.cache.eviction import Eviction
from pagoda.cache.fading import Fading
from pagoda.cache.groups import HOLE, Groups
from pagoda.cache.radix import RadixTree
from pagoda.cache.tables import READY, Extension, Held
from pagoda.plan import PageCopy


class Growth:
    """Works on what sequences hold; knows none of them by name. `first` and `last` are pages: from, and up to."""

    def __init__(self, groups: Groups, tree: RadixTree, eviction: Eviction, fading: Fading) -> None:
        self._groups = groups
        self._pools = groups.pools
        self._tree = tree
        self._eviction = eviction
        self._fading = fading
        self._each = range(len(groups))

    def short(self, held: Held, begins: tuple[int, ...], first: int, last: int) -> tuple[int, int]:
        """How many pages are missing for a table of `last` pages that holds those from `begins` on, and of which it may
        write those from `first` on; and in which group.
        """
        return max((self._short(held, group, begins[group], first, last), group) for group in self._each)

    def slide(self, held: Held, begins: tuple[int, ...]) -> None:
        """Give up the pages before these."""
        begins = tuple(map(max, held.begins, begins))
        if held.begins != begins:
            tables = []
            for group, (table, old, new) in enumerate(zip(held.tables, held.begins, begins, strict=True)):
                self._groups.drop(group, table[old:new])
                self._fading.passed(group, held.path[old:new])
                tables.append((HOLE,) * new + table[new:] if new > old else table)
            held.tables, held.begins = tuple(tables), begins

    def uncommit(self, held: Held, to: int) -> None:
        """No more than so many tokens are committed."""
        if to >= held.committed:
            return
        held.committed = to
        whole, over = divmod(to, self._groups.page_size)
        if whole < len(held.path):
            held.tail = list(self._tree.page_tokens(held.path[whole])[:over])
            del held.path[whole:]
        else:
            del held.tail[over:]

    def take(self, held: Held, start: int, first: int, last: int) -> Extension:
        """Make the table one of `last` pages, of which those from `first` on are its own; there are enough. Slots
        before `start` are copied from those it shared.
        """
        self._cut(held, last)
        for group in self._each:
            while self._lack(held, group, held.begins[group], first, last) > 0:
                self._disown(group, self._mine(held, group, first, last)[0])
        splits = [self._splits(held, group, first, last) for group in self._each]
        more = max(last - len(held.tables[0]), 0)
        if not more and not any(splits):
            return READY
        self.free_up([more + len(split) for split in splits])
        copies: list[PageCopy] = []
        held.tables = tuple(
            self._grown(group, table, splits[group], start, last, copies) for group, table in enumerate(held.tables)
        )
        return Extension(True, tuple(copies))

    def free_up(self, wanted: Sequence[int]) -> None:
        """So many pages of each group are free, of those that are available."""
        for group in self._each:
            while self._pools[group].free < wanted[group]:
                windowed = group in self._groups.windowed
                evicted = self._fading.strip(self._tree, group) if windowed else self._eviction.evict(self._tree)
                assert evicted, "pages count as available and cannot be evicted"

    def _grown(
        self, group: int, table: tuple[int, ...], split: list[int], start: int, last: int, copies: list[PageCopy]
    ) -> tuple[int, ...]:
        """The table with the pages at `split` replaced by own ones, and grown to `last` pages."""
        pool, pages = self._pools[group], list(table)
        for index in split:
            target, source = pool.take(), pages[index]
            pool.drop(source)  # others hold it: it stays, and its content with it
            pages[index] = target
            if slots := max(start - index * self._groups.page_size, 0):
                copies.append(PageCopy(group, source, target, slots))
        pages.extend(pool.take() for _ in range(last - len(table)))
        return tuple(pages)

    def _cut(self, held: Held, last: int) -> None:
        """Give up the pages from `last` on."""
        if len(held.tables[0]) > last:
            for group, table in enumerate(held.tables):
                self._groups.drop(group, table[last:])
            held.tables = tuple(table[:last] for table in held.tables)

    def _splits(self, held: Held, group: int, first: int, last: int) -> list[int]:
        """Which pages of a range others hold too."""
        shared, table = self._pools[group].shared, held.tables[group]
        return [index for index in range(first, min(last, len(table))) if shared(table[index])]

    def _lack(self, held: Held, group: int, begin: int, first: int, last: int) -> int:
        """Pages of a group wanted beyond those available, if those before `begin` and from `last` on go."""
        table, pool = held.tables[group], self._pools[group]
        given_up = sum(map(pool.alone, table[held.begins[group] : begin])) + sum(map(pool.alone, table[last:]))
        return max(last - len(table), 0) + len(self._splits(held, group, first, last)) - pool.available - given_up

    def _short(self, held: Held, group: int, begin: int, first: int, last: int) -> int:
        """How many are missing even if the tree gives up those that only it holds besides."""
        lack = self._lack(held, group, begin, first, last)
        return lack - len(self._mine(held, group, first, last)) if lack > 0 else 0

    def _mine(self, held: Held, group: int, first: int, last: int) -> list[int]:
        """Pages to be split that only the tree holds besides this sequence: it may have them for itself."""
        alone, table = self._pools[group].alone, held.tables[group]
        return [table[i] for i in self._splits(held, group, first, last) if alone(table[i])]

    def _disown(self, group: int, page: int) -> None:
        """The tree forgets a page, under whatever keys. Rare: a sequence has no other page left to take."""
        for node in [node for node in self._tree.all() if node.pages is not None and node.pages[group] == page]:
            if group in self._groups.windowed:
                self._fading.on_strip(node)
                self._tree.strip(node, group)
            elif node.parent is not None:
                self._eviction.forget(self._tree, node)
