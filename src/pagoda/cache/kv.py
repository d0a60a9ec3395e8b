"""`KVCache`: the verbs by which sequences get, share, split and give back pages, and find the prefixes of others.

Knows page tables, token ids and counts. Does not know what a page holds: whoever writes positions asks `extend` first,
and carries out the copies it returns before writing. Plans run strictly in order, so a page given back may be handed
out at once, and a page may be shared once the plan that fills it is handed over: whoever reads it comes later.

A group with a sliding window gives back the pages before it, when a sequence has passed them (`slide`, `extend`): its
tables have holes there, and nodes of the tree may lose such pages before others (`groups`, `fading`).

Paging after Kwon et al. 2023, "Efficient Memory Management for Large Language Model Serving with PagedAttention".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from pagoda.cache.eviction import Eviction
from pagoda.cache.fading import Fading
from pagoda.cache.finder import Finder
from pagoda.cache.groups import HOLE, Groups, Pages
from pagoda.cache.growth import Growth
from pagoda.cache.paths import PathStart, check_paths, close_paths, open_path
from pagoda.cache.pins import Pins
from pagoda.cache.radix import Key, Node, RadixTree
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
        windows: of each KV group, in positions, the first without; empty: none has one.
        chunk: most tokens of a sequence that one step writes.
    """

    def __init__(
        self, pages: Sequence[int], page_size: int, prefixes: bool = True, reserve: int = 0,
        windows: Sequence[int | None] = (), chunk: int = 1,
    ) -> None:  # fmt: skip
        self.page_size = page_size
        self._groups = groups = Groups(pages, page_size, windows, chunk)
        self._pools = groups.pools
        self._held: dict[int, Held] = {}
        self.prefixes = prefixes
        """Whether prefixes are kept."""
        self._reserve = reserve
        self._eviction = Eviction(min(self._pools[g].pages for g in groups.unwindowed), self._busy)
        self._fading = Fading(groups)
        self._tree = self.tree = RadixTree(page_size, groups.keep, groups.let_go, self._eviction.on_leaf)
        self._pins = Pins(groups)
        self._growth = Growth(groups, self._tree, self._eviction, self._fading)
        self._finder = Finder(groups, self._tree, self._pins, self._eviction)

    def watch_evictions(self, on_evict: Callable[[Node], None]) -> None:
        """From here on, tell of each node that goes to make room, or loses a page, while it has all it had."""
        self._eviction.on_evict = self._fading.on_strip = on_evict

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
    def available(self) -> tuple[int, ...]:
        """Pages to be had, of each group."""
        return tuple(pool.available for pool in self._pools)

    def pages_for(self, tokens: int) -> int:
        """Pages of a group without a window that hold this many tokens."""
        return self._groups.pages_for(tokens)

    # What a sequence will take, in pages of each group.

    def wanted(self, match: Match, tokens: int) -> tuple[int, ...]:
        """Of the available pages, how many a sequence of so many tokens takes if it is admitted."""
        groups, whole = self._groups, match.units[: match.length // self.page_size]
        begins = groups.begins(match.length)
        return tuple(
            groups.span(group, tokens) - sum(pool.in_use(unit[group]) for unit in whole[begins[group] :])
            for group, pool in enumerate(self._pools)
        )

    def wanted_by_fork(self, at: int, tokens: int) -> tuple[int, ...]:
        """The same of one that is forked at `at`."""
        groups, whole = self._groups, at // self.page_size
        return tuple(groups.span(g, tokens) - max(whole - begin, 0) for g, begin in enumerate(groups.begins(at)))

    def owed(self, sequence: int, tokens: int) -> tuple[int, ...]:
        """How many a sequence still takes until it has so many tokens."""
        held, span = self._held[sequence], self._groups.span
        tables = enumerate(zip(held.tables, held.begins, strict=True))
        return tuple(max(span(group, tokens) - len(table) + begin, 0) for group, (table, begin) in tables)

    def has(self, wants: Iterable[tuple[int, ...]], besides: int) -> bool:
        """Whether there are pages for all of these, and so many more in each group."""
        wanted = map(sum, zip(*wants, strict=True))
        return all(count + besides <= free for count, free in zip(wanted, self.available, strict=True))

    # Prefixes.

    def match(self, key: Key, tokens: tuple[int, ...]) -> Match:
        """The longest prefix kept of a sequence, of len(tokens) - 1 tokens at most; from any thread, about now."""
        assert tokens, "a sequence is empty"
        return self._finder.match(key, tokens) if self.prefixes else Match(0, CacheCause.OFF)

    def admit(
        self, sequence: int, tokens: tuple[int, ...], key: Key = "", match: Match | None = None, counts: bool = True
    ) -> Match:
        """Open a page table for a sequence that has none, with the pages of the longest prefix found (`match`). Unless
        it `counts`, no pin is hit by it.
        """
        assert sequence not in self._held, f"sequence {sequence} is admitted twice"
        match = match or self.match(key, tokens)
        units, begins = self._groups.cut(match.units, match.length), self._groups.begins(match.length)
        for unit in units:
            self._groups.share(unit)
        for node in match.own:
            self._eviction.touch(node)
        self._fading.found(match.own, match.length)
        if match.partial is not None:
            self._eviction.touch(match.partial)
            self._fading.touch(match.partial)
        tables = tuple(zip(*units, strict=True)) if units else tuple(() for _ in self._pools)
        rest = list(tokens[len(match.own) * self.page_size : match.length])
        held = self._held[sequence] = Held(key, tables, match.length, match.length, begins, list(match.own), rest)
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

    def slide(self, sequence: int) -> None:
        """Of what is committed, give back the pages before the windows: no later position sees them."""
        if self._groups.windowed:
            held = self._held[sequence]
            self._growth.slide(held, self._groups.begins(held.committed))

    # Pins.

    def pin_fits(self, tokens: int) -> bool:
        """Whether so many more tokens can be pinned, and the longest sequence still has its pages."""
        groups = self._groups
        return self.prefixes and all(
            groups.kept(group, tokens) + groups.span(group, self._reserve) <= pool.pages - pool.fixed
            for group, pool in enumerate(self._pools)
        )

    def pin(self, number: int, owner: str, tokens: tuple[int, ...], shared: bool, name: str = "") -> PinInfo | None:
        """Pin a prefix, for all keys if it is shared, else for its owner's, which is the owner's name.

        None if it is no longer in the cache as a whole.
        """
        units = self._finder.whole(owner, tokens)
        return None if units is None else self._pins.add(number, owner, tokens, units, shared, name)

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
        for group in self._groups.windowed:  # of prefixes that stay, what nobody is reading
            while self._fading.strip(self._tree, group):
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
        `start` on is given up, and what lies before the window of `start`: no later call may begin before.
        """
        held, groups = self._held[sequence], self._groups
        assert not held.paths, f"sequence {sequence} goes on before its paths are closed"
        assert start < upto, f"no positions from {start} to {upto}"
        assert start <= held.slots, f"positions from {start}, and {held.slots} have slots"
        begins, first, last = groups.begins(start), start // self.page_size, groups.pages_for(upto)
        passes = held.begins != begins
        assert not passes or self.forks(sequence, start), f"what position {start} sees was given back"
        extension = READY
        moves = passes or start < held.committed or len(held.tables[0]) != last
        if moves or any(any(map(p.shared, t[first:last])) for p, t in zip(self._pools, held.tables, strict=True)):
            lack, group = self._growth.short(held, begins, first, last)
            if lack > 0:
                return Extension(False, lack=lack, group=group)
            self._growth.uncommit(held, start)
            self._growth.slide(held, begins)
            extension = self._growth.take(held, start, first, last)
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
        lack = wanted + spare - min(self.available)
        if lack > 0:
            return Extension(False, lack=lack)
        self._growth.free_up([wanted] * len(self._pools))
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
        if start != held.slots or not start % self.page_size:
            return None
        if any(pool.shared(table[-1]) for pool, table in zip(self._pools, held.tables, strict=True)):
            return None
        held.slots = start + 1
        return held.tables

    def forks(self, parent: int, at: int) -> bool:
        """Whether a sequence still holds what a fork at `at` would see."""
        return all(map(int.__le__, self._held[parent].begins, self._groups.begins(at)))

    def fork(self, parent: int, child: int, at: int) -> None:
        """Open a page table for `child` that shares the parent's pages of positions 0 to `at` - 1.

        The last of them may be partly filled; whoever first writes to it, parent or child, gets a copy (`extend`).
        """
        held = self._held[parent]
        assert at <= held.slots, f"a fork at {at}, and {held.slots} have slots"
        assert child not in self._held, f"sequence {child} is forked twice"
        assert self.forks(parent, at), f"what a fork at {at} sees was given back"
        units = self._groups.cut([held.unit(index) for index in range(self.pages_for(at))], at)
        for unit in units:
            self._groups.share(unit)
        tables = tuple(zip(*units, strict=True)) if units else tuple(() for _ in self._pools)
        begins = self._groups.begins(at)
        forked = Held(held.key, tables, at, held.committed, begins, list(held.path), list(held.tail))
        self._growth.uncommit(forked, at)
        self._held[child] = forked

    def alone(self, sequence: int, group: int = 0) -> int:
        """Of a sequence's pages in one group, how many no other and no pin holds: so many its release gives."""
        held = self._held[sequence]
        return sum(map(self._pools[group].alone, held.tables[group][held.begins[group] :]))

    def release(self, sequence: int) -> None:
        """Close a page table. Its committed tokens are kept while there is room; pages that nobody holds are free."""
        self.close_paths(sequence, 0)
        held = self._held.pop(sequence)
        if held.tail:
            self._keep(held, tuple(held.tail), held.unit(len(held.path)))
        for group, table in enumerate(held.tables):
            self._groups.drop(group, reversed(table))

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
        self._fading.check(self._tree)
        kept = [node.pages for node in self._tree.all() if node.pages is not None]
        pinned = [node.pages for node in self._pins.nodes() if node.pages is not None]
        for group, pool in enumerate(self._pools):
            uses = Counter(page for held in self._held.values() for page in held.tables[group])
            uses.update(page for held in self._held.values() for path in held.paths for page in path.own[group])
            counts = uses, Counter(unit[group] for unit in kept), Counter(unit[group] for unit in pinned)
            for count in counts:
                assert not group or HOLE not in count or self._groups.windows[group], "a hole without a window"
                del count[HOLE]
            pool.check(*counts)
        for sequence, held in self._held.items():
            held.check(f"sequence {sequence}", self.page_size, self.prefixes)
            for node in held.path:
                assert self._tree.key_of(node) == held.key, "a path under another key"
            check_paths(held, self.page_size)

    def _keep(self, held: Held, tokens: tuple[int, ...], pages: Pages) -> Node:
        """Put what follows on a sequence's path into the tree, a page's tokens at most."""
        node, new = self._tree.insert(held.key, held.last, tokens, pages)
        if new and node.parent is not None and len(node.parent.children) > 1:
            self._fading.found(held.path, len(held.path) * self.page_size)
        if len(tokens) == self.page_size:
            self._tree.fill(node, pages)
        self._eviction.touch(node)
        self._fading.touch(node)
        return node

    def _publish(self, held: Held) -> None:
        """Put whole pages of committed tokens into the tree."""
        size, swaps = self.page_size, {}
        while len(held.tail) >= size:
            index = len(held.path)
            tokens, pages = tuple(held.tail[:size]), held.unit(index)
            node = self._keep(held, tokens, pages)
            assert node.pages is not None, "a page's end without a page"
            theirs = tuple(HOLE if ours == HOLE else page for page, ours in zip(node.pages, pages, strict=True))
            if theirs != pages:
                swaps[index] = theirs
                self._groups.share(theirs)
                for group, page in enumerate(pages):
                    self._groups.drop(group, (page,))
            held.path.append(node)
            del held.tail[:size]
        if swaps:
            tables = [list(table) for table in held.tables]
            for index, unit in swaps.items():
                for table, page in zip(tables, unit, strict=True):
                    table[index] = page
            held.tables = tuple(map(tuple, tables))

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
