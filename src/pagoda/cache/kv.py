"""`KVCache`: the verbs by which sequences get, share, split and give back pages.

Knows page tables and counts. Does not know what a page holds: whoever writes positions asks `extend` first, and carries
out the copies it returns before writing. Plans run strictly in order, so a page given back may be handed out at once:
whatever an earlier plan still writes to it is written before a later plan's.

Paging after Kwon et al. 2023, "Efficient Memory Management for Large Language Model Serving with PagedAttention".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from pagoda.cache.pool import PagePool
from pagoda.plan import PageCopy

Tables = tuple[tuple[int, ...], ...]
"""Page numbers in order, per KV group."""


@dataclass(frozen=True, slots=True)
class Extension:
    """What `KVCache.extend` did."""

    fits: bool
    """False: pages ran out, and nothing was changed."""
    copies: tuple[PageCopy, ...] = ()
    """To be carried out, in this order, before the positions are written."""


_READY = Extension(True)
_NO_ROOM = Extension(False)


@dataclass(slots=True)
class _Held:
    """What one sequence holds."""

    tables: Tables
    slots: int
    """Positions from 0 that have slots."""
    committed: int
    """Positions from 0 whose tokens are verified and computed."""


class KVCache:
    """Pages of every KV group, and the page tables of the sequences that hold them."""

    def __init__(self, pages: Sequence[int], page_size: int) -> None:
        self.page_size = page_size
        self._pools = tuple(PagePool(count) for count in pages)
        self._held: dict[int, _Held] = {}

    @property
    def total(self) -> int:
        """Pages of all groups together."""
        return sum(pool.pages for pool in self._pools)

    @property
    def used(self) -> int:
        """Pages held, of all groups together."""
        return sum(pool.pages - pool.free for pool in self._pools)

    @property
    def free(self) -> int:
        """Free pages of the group that has fewest."""
        return min(pool.free for pool in self._pools)

    def pages_for(self, tokens: int) -> int:
        """Pages of one group that hold this many tokens."""
        return -(-tokens // self.page_size)

    def admit(self, sequence: int, tokens: Sequence[int]) -> int:
        """Open a page table for a sequence that has none.

        Returns:
            How many of `tokens`, from the first on, have their KV in the cache already: at most len(tokens) - 1, as the
            last one must be computed to get its logits. 0 while no prefix is kept.
        """
        assert tokens, f"sequence {sequence} is empty"
        assert sequence not in self._held, f"sequence {sequence} is admitted twice"
        self._held[sequence] = _Held(tuple(() for _ in self._pools), 0, 0)
        return 0

    def extend(self, sequence: int, start: int, upto: int) -> Extension:
        """Make positions `start` to `upto` - 1 writable, in every group or in none.

        Missing pages are taken, and pages in that range that others hold too are split: this sequence gets a page of
        its own with the slots before `start` copied. What it held from `start` on is given up.
        """
        held = self._held[sequence]
        assert start < upto, f"no positions from {start} to {upto}"
        assert start <= held.slots, f"positions from {start}, and {held.slots} have slots"
        first, last = start // self.page_size, -(-upto // self.page_size)
        extension = _READY
        for pool, table in zip(self._pools, held.tables, strict=True):
            if len(table) < last or any(map(pool.shared, table[first:last])):
                extension = self._grow(held, start, first, last)
                break
        if extension.fits:
            held.slots, held.committed = max(held.slots, upto), min(held.committed, start)
        return extension

    def _grow(self, held: _Held, start: int, first: int, last: int) -> Extension:
        """Take pages in every group, or in none."""
        splits = []
        for pool, table in zip(self._pools, held.tables, strict=True):
            split = [i for i in range(first, min(last, len(table))) if pool.shared(table[i])]
            if max(last - len(table), 0) + len(split) > pool.free:
                return _NO_ROOM
            splits.append(split)
        copies: list[PageCopy] = []
        held.tables = tuple(
            self._grown(group, table, split, start, last, copies)
            for group, (table, split) in enumerate(zip(held.tables, splits, strict=True))
        )
        return Extension(True, tuple(copies))

    def _grown(
        self, group: int, table: tuple[int, ...], split: list[int], start: int, last: int, copies: list[PageCopy]
    ) -> tuple[int, ...]:
        """The table with the pages at `split` replaced by own ones, and grown to `last` pages."""
        pool, pages = self._pools[group], list(table)
        for index in split:
            target, source = pool.take(), pages[index]
            pool.drop(source)  # others hold it: it stays, and its content with it
            pages[index] = target
            if slots := max(start - index * self.page_size, 0):
                copies.append(PageCopy(group, source, target, slots))
        pages.extend(pool.take() for _ in range(last - len(table)))
        return tuple(pages)

    def committed(self, sequence: int) -> int:
        """How many tokens of the sequence were committed."""
        return self._held[sequence].committed

    def commit(self, sequence: int, tokens: Sequence[int]) -> None:
        """The next tokens after those committed before are verified, and their KV is computed: they may be shared."""
        held = self._held[sequence]
        held.committed += len(tokens)
        assert held.committed <= held.slots, f"{held.committed} tokens committed, {held.slots} have slots"

    def fork(self, parent: int, child: int, at: int) -> None:
        """Open a page table for `child` that shares the parent's pages of positions 0 to `at` - 1.

        The last of them may be partly filled; whoever first writes to it, parent or child, gets a copy (`extend`).
        """
        held = self._held[parent]
        assert at <= held.slots, f"a fork at {at}, and {held.slots} have slots"
        assert child not in self._held, f"sequence {child} is forked twice"
        tables = tuple(table[: self.pages_for(at)] for table in held.tables)
        for pool, table in zip(self._pools, tables, strict=True):
            for page in table:
                pool.share(page)
        self._held[child] = _Held(tables, at, min(held.committed, at))

    def release(self, sequence: int) -> None:
        """Close a page table; pages that nobody else holds are free."""
        for pool, table in zip(self._pools, self._held.pop(sequence).tables, strict=True):
            for page in reversed(table):
                pool.drop(page)

    def table(self, sequence: int) -> Tables:
        """The page tables, one per group: the same object until they change."""
        return self._held[sequence].tables

    def check(self) -> None:
        """Assert that counts equal the tables' uses, that tables cover their slots, and what is committed has slots."""
        for group, pool in enumerate(self._pools):
            pool.check(Counter(page for held in self._held.values() for page in held.tables[group]))
        for sequence, held in self._held.items():
            assert held.committed <= held.slots, f"sequence {sequence}: committed beyond its slots"
            for table in held.tables:
                assert len(table) == self.pages_for(held.slots), f"sequence {sequence}: table does not match its slots"
                assert len(set(table)) == len(table), f"sequence {sequence} holds a page twice"
