"""`KVCache`: the verbs by which sequences get, share, split and give back pages, and find the prefixes of others.

Knows page tables, token ids and counts. Does not know what a page holds: whoever writes positions asks `extend` first,
and carries out the copies it returns before writing. Plans run strictly in order, so a page given back may be handed
out at once, and a page may be shared once the plan that fills it is handed over: whoever reads it comes later.

Every group's tables have the same length and are shared alike; only the page numbers differ. A group with a sliding
window would give back the pages before it: its tables would start at a page other than 0 (plans and kernels would have
to know which), counts of pages would differ by group (`_splits`, `_lack` and `alone` look at the first), a node of the
tree would hold pages of some groups only, and a match could end only where a whole window's pages before it are kept.

Paging after Kwon et al. 2023, "Efficient Memory Management for Large Language Model Serving with PagedAttention".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from pagoda.cache.eviction import Eviction
from pagoda.cache.paths import PathStart, check_paths, close_paths, open_path
from pagoda.cache.pins import Pins
from pagoda.cache.pool import PagePool
from pagoda.cache.radix import Found, Key, Node, Pages, RadixTree
from pagoda.cache.tables import READY, Extension, Held, Match, Tables
from pagoda.plan import PageCopy
from pagoda.types import CacheCause, CacheReport, PinInfo


class KVCache:
    """Pages of every KV group, the page tables of the sequences that hold them, and the prefixes that are kept.

    Args:
        pages: of each KV group.
        page_size: token slots of a page.
        prefixes: whether prefixes are kept.
        reserve: tokens for which there must be pages besides all pins.
    """

    def __init__(self, pages: Sequence[int], page_size: int, prefixes: bool = True, reserve: int = 0) -> None:
        self.page_size = page_size
        self._pools = tuple(PagePool(count) for count in pages)
        self._held: dict[int, Held] = {}
        self.prefixes = prefixes
        """Whether prefixes are kept."""
        self._reserve = self.pages_for(reserve)
        self._eviction = Eviction(min(pages), self._busy)
        self._tree = self.tree = RadixTree(page_size, self._keep, self._let_go, self._eviction.on_leaf)
        self._pins = Pins(page_size, self._pools)

    def watch_evictions(self, on_evict: Callable[[Node], None]) -> None:
        """From here on, tell of each node that goes to make room, while it is still in the tree."""
        self._eviction.on_evict = on_evict

    @property
    def total(self) -> int:
        """Pages of all groups together."""
        return sum(pool.pages for pool in self._pools)

    @property
    def used(self) -> int:
        """Pages that tables or pins hold, of all groups together."""
        return self.total - sum(pool.available for pool in self._pools)

    @property
    def idle(self) -> int:
        """Pages that hold prefixes and nothing else, of all groups together: they go when pages are wanted."""
        return sum(pool.idle for pool in self._pools)

    @property
    def fixed(self) -> int:
        """Pages that pins hold, of all groups together."""
        return sum(pool.fixed for pool in self._pools)

    @property
    def available(self) -> int:
        """Pages to be had, of the group that has fewest."""
        return min(pool.available for pool in self._pools)

    def pages_for(self, tokens: int) -> int:
        """Pages of one group that hold this many tokens."""
        return -(-tokens // self.page_size)

    # Prefixes.

    def match(self, key: Key, tokens: tuple[int, ...]) -> Match:
        """The longest prefix kept of a sequence, of len(tokens) - 1 tokens at most; from any thread, about now."""
        assert tokens, "a sequence is empty"
        if not self.prefixes:
            return Match(0, CacheCause.OFF)
        most = len(tokens) - 1
        own = self._tree.match(key, tokens, most)
        best = self._pins.match(key, tokens, most) if self._pins else own
        if best.length <= own.length:
            best = own
        cause, pinned = self._cause(key, tokens, best), best.nodes[len(own.nodes) :]
        return Match(best.length, cause, own.nodes, pinned, best.partial, best.differs, best.ahead)

    def wanted(self, match: Match, tokens: int) -> int:
        """Of the available pages of one group, how many a sequence of so many tokens takes if it is admitted."""
        pool = self._pools[0]
        in_use = sum(pool.in_use(node.pages[0]) for node in match.own if node.pages is not None)
        return self.pages_for(tokens) - in_use - len(match.pinned)

    def admit(
        self, sequence: int, tokens: tuple[int, ...], key: Key = "", match: Match | None = None, counts: bool = True
    ) -> Match:
        """Open a page table for a sequence that has none, with the pages of the longest prefix found (`match`). Unless
        it `counts`, no pin is hit by it.
        """
        assert sequence not in self._held, f"sequence {sequence} is admitted twice"
        match = match or self.match(key, tokens)
        units = match.units
        for unit in units:
            self._share(unit)
        for node in match.own:
            self._eviction.touch(node)
        if match.partial is not None:
            self._eviction.touch(match.partial)
        tables = tuple(zip(*units, strict=True)) if units else tuple(() for _ in self._pools)
        rest = list(tokens[len(match.own) * self.page_size : match.length])
        held = self._held[sequence] = Held(key, tables, match.length, match.length, list(match.own), rest)
        self._publish(held)
        if counts:
            self._pins.hit(key, tokens, match.length)
        return match

    def committed(self, sequence: int) -> int:
        """How many tokens of the sequence were committed."""
        return self._held[sequence].committed

    def commit(self, sequence: int, tokens: Sequence[int]) -> None:
        """The next tokens after those committed before are verified, and their KV is computed: others may find them.

        Whole pages can be found at once, the rest when the sequence is released. A page that the tree has already takes
        the place of the sequence's own: they hold the same.
        """
        held = self._held[sequence]
        held.committed += len(tokens)
        assert held.committed <= held.slots, f"{held.committed} tokens committed, {held.slots} have slots"
        if self.prefixes:
            held.tail.extend(tokens)
            self._publish(held)

    # Pins.

    def pin_fits(self, tokens: int) -> bool:
        """Whether so many more tokens can be pinned, and the longest sequence still has its pages."""
        most = min(pool.pages - pool.fixed for pool in self._pools)
        return self.prefixes and self.pages_for(tokens) + self._reserve <= most

    def pin(self, number: int, owner: str, tokens: tuple[int, ...], shared: bool, name: str = "") -> PinInfo | None:
        """Pin a prefix, for all keys if it is shared, else for its owner's, which is the owner's name.

        None if it is no longer in the cache as a whole.
        """
        own = self._tree.match(owner, tokens, len(tokens))
        best = max(self._pins.match(owner, tokens, len(tokens)), own, key=lambda found: found.length)
        if best.length < len(tokens):
            return None
        units = [node.pages for node in (*best.nodes, best.partial) if node is not None and node.pages is not None]
        return self._pins.add(number, owner, tokens, units, shared, name)

    def pinned(self, owner: str, tokens: tuple[int, ...], shared: bool) -> PinInfo | None:
        """An owner's pin of exactly this prefix, if there is one. From any thread."""
        return self._pins.find(owner, tokens, shared)

    def unpin(self, number: int) -> bool:
        """Let a pin go; False if there is none of this number. Its pages stay until they are evicted."""
        return self._pins.remove(number)

    def clear(self) -> int:
        """Evict every prefix that no sequence has pages of; how many pages came free, of all groups together."""
        before = sum(pool.free for pool in self._pools)
        while self._eviction.evict(self._tree):
            pass
        return sum(pool.free for pool in self._pools) - before

    def pins(self) -> tuple[PinInfo, ...]:
        """All pins."""
        return self._pins.infos()

    def report(self) -> CacheReport:
        """What every page is used for, about now: from any thread, it does not wait for a step."""
        maps = tuple(pool.map() for pool in self._pools)
        count = Counter("".join(maps))
        return CacheReport(
            self.page_size, self.total, count["u"] + count["s"], count["p"], count["c"], count["."], self._tree.nodes,
            self.pins(), maps,
        )  # fmt: skip

    # Pages.

    def extend(self, sequence: int, start: int, upto: int) -> Extension:
        """Make positions `start` to `upto` - 1 writable, in every group or in none.

        Missing pages are taken, from the tree's least worthy prefixes if none is free; pages in that range that others
        hold too are split: this sequence gets a page of its own with the slots before `start` copied. What it held from
        `start` on is given up.
        """
        held = self._held[sequence]
        assert not held.paths, f"sequence {sequence} goes on before its paths are closed"
        assert start < upto, f"no positions from {start} to {upto}"
        assert start <= held.slots, f"positions from {start}, and {held.slots} have slots"
        first, last = start // self.page_size, self.pages_for(upto)
        extension = READY
        table, shared = held.tables[0], self._pools[0].shared
        if start < held.committed or len(table) != last or any(map(shared, table[first:last])):
            lack, mine = self._lack(held, first, last), self._mine(held, first, last)
            if lack > len(mine):
                return Extension(False, lack=lack - len(mine))
            self._uncommit(held, start)
            self._cut(held, last)
            for unit in mine[: max(lack, 0)]:
                self._disown(unit)
            extension = self._grow(held, start, first, last)
        held.slots = upto
        return extension

    def open_paths(self, sequence: int, start: int, paths: Sequence[PathStart], spare: int = 0) -> Extension:
        """Page tables for other tokens than the sequence's own at some positions after `start`, from where on `extend`
        has made it writable. They last until `close_paths`; `table` tells them by their numbers, from 1 on.

        A path shares the pages before the one in which it leaves another. From there on it has pages of its own, the
        first with a copy of the slots before `start`: whoever writes the other path's positions writes them there too.
        Unless `spare` pages stay available besides, none is opened.
        """
        held, size = self._held[sequence], self.page_size
        assert not held.paths, f"sequence {sequence} has paths already"
        wanted = sum(self.pages_for(path.upto) - path.at // size for path in paths)
        lack = wanted + spare - self.available
        if lack > 0:
            return Extension(False, lack=lack)
        self._free_up(wanted)
        copies: list[PageCopy] = []
        for path in paths:
            assert start < path.at < path.upto, f"{path} does not leave positions after {start}"
            held.paths.append(open_path(self._pools, held, path, start, size, copies))
        return Extension(True, tuple(copies))

    def close_paths(self, sequence: int, path: int) -> None:
        """What one path's slots hold is the sequence's from here on; 0: what its own hold. The other paths are gone."""
        close_paths(self._pools, self._held[sequence], path)

    def next_slot(self, sequence: int, start: int) -> Tables | None:
        """The page tables, if position `start` is the first without a slot and lies in a page that is begun, and this
        sequence's alone: it has a slot now. None leaves all as it was: `extend` has to do it.
        """
        held = self._held[sequence]
        assert not held.paths, f"sequence {sequence} goes on before its paths are closed"
        if start != held.slots or not start % self.page_size or self._pools[0].shared(held.tables[0][-1]):
            return None
        held.slots = start + 1
        return held.tables

    def fork(self, parent: int, child: int, at: int) -> None:
        """Open a page table for `child` that shares the parent's pages of positions 0 to `at` - 1.

        The last of them may be partly filled; whoever first writes to it, parent or child, gets a copy (`extend`).
        """
        held = self._held[parent]
        assert at <= held.slots, f"a fork at {at}, and {held.slots} have slots"
        assert child not in self._held, f"sequence {child} is forked twice"
        tables = tuple(table[: self.pages_for(at)] for table in held.tables)
        for unit in zip(*tables, strict=True):
            self._share(unit)
        forked = Held(held.key, tables, at, held.committed, list(held.path), list(held.tail))
        self._uncommit(forked, at)
        self._held[child] = forked

    def alone(self, sequence: int) -> int:
        """Of a sequence's pages in one group, how many no other and no pin holds: so many its release gives."""
        return sum(map(self._pools[0].alone, self._held[sequence].tables[0]))

    def release(self, sequence: int) -> None:
        """Close a page table. Its committed tokens are kept while there is room; pages that nobody holds are free."""
        self.close_paths(sequence, 0)
        held = self._held.pop(sequence)
        if held.tail:
            node, _ = self._tree.insert(held.key, held.last, tuple(held.tail), held.unit(len(held.path)))
            self._eviction.touch(node)
        for pool, table in zip(self._pools, held.tables, strict=True):
            for page in reversed(table):
                pool.drop(page)

    def table(self, sequence: int, path: int = 0) -> Tables:
        """The page tables, one per group: the same object until they change, but for those of other paths."""
        return self._held[sequence].along(path)

    def check(self) -> None:
        """Assert that counts equal the uses by tables, nodes and pins, that tables cover their slots, and that what is
        committed has slots and, page by page, is the tree's.
        """
        self._tree.check()
        self._pins.check()
        self._eviction.check(self._tree)
        kept = [node.pages for node in self._tree.all() if node.pages is not None]
        pinned = [node.pages for node in self._pins.nodes() if node.pages is not None]
        for group, pool in enumerate(self._pools):
            uses = Counter(page for held in self._held.values() for page in held.tables[group])
            uses.update(page for held in self._held.values() for path in held.paths for page in path.own[group])
            pool.check(uses, Counter(unit[group] for unit in kept), Counter(unit[group] for unit in pinned))
        for sequence, held in self._held.items():
            assert held.committed <= held.slots, f"sequence {sequence}: committed beyond its slots"
            for table in held.tables:
                assert len(table) == self.pages_for(held.slots), f"sequence {sequence}: table does not match its slots"
                assert len(set(table)) == len(table), f"sequence {sequence} holds a page twice"
            self._check_path(held)
            check_paths(held, self.page_size)

    def _check_path(self, held: Held) -> None:
        if self.prefixes:
            size = self.page_size
            assert len(held.path) == held.committed // size, "whole committed pages are not in the tree"
            assert len(held.tail) == held.committed % size, "committed tokens are lost"
        for index, node in enumerate(held.path):
            assert node.pages == held.unit(index), "a sequence and the tree have different pages of one prefix"
            assert node.end == (index + 1) * self.page_size, "a path skips a page"
            assert self._tree.key_of(node) == held.key, "a path under another key"

    def _cause(self, key: Key, tokens: tuple[int, ...], found: Found) -> CacheCause:
        """Why a match is no longer."""
        at, size = found.length, self.page_size
        if at == len(tokens) - 1:
            return CacheCause.WHOLE
        digest = found.nodes[-1].digest if found.nodes else 0
        page = at - at % size
        if self._eviction.remembers(key, digest, tokens[page : at + 1]):
            return CacheCause.EVICTED
        if self._tree.holds_elsewhere(digest, tokens[page : page + size]):
            return CacheCause.OTHER_KEY
        return CacheCause.DIFFERENT if found.differs else CacheCause.NEVER_SEEN

    def _publish(self, held: Held) -> None:
        """Put whole pages of committed tokens into the tree."""
        size, swaps = self.page_size, {}
        while len(held.tail) >= size:
            index = len(held.path)
            tokens, pages = tuple(held.tail[:size]), held.unit(index)
            node, _ = self._tree.insert(held.key, held.last, tokens, pages)
            self._eviction.touch(node)
            if node.pages is not None and node.pages != pages:
                swaps[index] = node.pages
                self._share(node.pages)
                for pool, page in zip(self._pools, pages, strict=True):
                    pool.drop(page)
            held.path.append(node)
            del held.tail[:size]
        if swaps:
            tables = [list(table) for table in held.tables]
            for index, unit in swaps.items():
                for table, page in zip(tables, unit, strict=True):
                    table[index] = page
            held.tables = tuple(map(tuple, tables))

    def _cut(self, held: Held, last: int) -> None:
        """Give up the pages from `last` on."""
        if len(held.tables[0]) > last:
            for pool, table in zip(self._pools, held.tables, strict=True):
                for page in table[last:]:
                    pool.drop(page)
            held.tables = tuple(table[:last] for table in held.tables)

    def _uncommit(self, held: Held, to: int) -> None:
        """No more than so many tokens are committed."""
        if to >= held.committed:
            return
        held.committed = to
        whole, over = divmod(to, self.page_size)
        if whole < len(held.path):
            held.tail = list(self._tree.page_tokens(held.path[whole])[:over])
            del held.path[whole:]
        else:
            del held.tail[over:]

    def _splits(self, held: Held, first: int, last: int) -> list[int]:
        """Which pages of a range others hold too."""
        shared, table = self._pools[0].shared, held.tables[0]
        return [index for index in range(first, min(last, len(table))) if shared(table[index])]

    def _lack(self, held: Held, first: int, last: int) -> int:
        """How many pages are wanted beyond those available."""
        table = held.tables[0]
        given_up = sum(map(self._pools[0].alone, table[last:]))
        return max(last - len(table), 0) + len(self._splits(held, first, last)) - self.available - given_up

    def _mine(self, held: Held, first: int, last: int) -> list[Pages]:
        """Pages to be split that only the tree holds besides this sequence: it may have them for itself."""
        alone = self._pools[0].alone
        return [held.unit(i) for i in self._splits(held, first, last) if alone(held.tables[0][i])]

    def _disown(self, unit: Pages) -> None:
        """The tree forgets a page, under whatever keys. Rare: a sequence has no other page left to take."""
        for node in [node for node in self._tree.all() if node.pages == unit]:
            self._eviction.forget(self._tree, node)

    def _grow(self, held: Held, start: int, first: int, last: int) -> Extension:
        """Take pages in every group; there are enough."""
        split = self._splits(held, first, last)
        wanted = max(last - len(held.tables[0]), 0) + len(split)
        if not wanted:
            return READY
        self._free_up(wanted)
        copies: list[PageCopy] = []
        held.tables = tuple(
            self._grown(group, table, split, start, last, copies) for group, table in enumerate(held.tables)
        )
        return Extension(True, tuple(copies))

    def _free_up(self, wanted: int) -> None:
        """So many pages of each group are free, of those that are available."""
        while min(pool.free for pool in self._pools) < wanted:
            evicted = self._eviction.evict(self._tree)
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
            if slots := max(start - index * self.page_size, 0):
                copies.append(PageCopy(group, source, target, slots))
        pages.extend(pool.take() for _ in range(last - len(table)))
        return tuple(pages)

    def _share(self, unit: Pages) -> None:
        for pool, page in zip(self._pools, unit, strict=True):
            pool.share(page)

    def _keep(self, unit: Pages) -> None:
        for pool, page in zip(self._pools, unit, strict=True):
            pool.keep(page)

    def _let_go(self, unit: Pages) -> None:
        for pool, page in zip(self._pools, unit, strict=True):
            pool.let_go(page)

    def _busy(self, node: Node) -> bool:
        """Whether a sequence has a node in its path, or next after it, and so holds the pages of all before it."""
        assert node.pages is not None, "a leaf without pages"
        page = node.pages[0]
        if not self._pools[0].tabled(page):
            return False
        index, key = node.start // self.page_size, self._tree.key_of(node)
        return any(
            held.key == key and len(held.path) >= index < len(held.tables[0]) and held.tables[0][index] == page
            for held in self._held.values()
        )
