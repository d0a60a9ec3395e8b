"""`Eviction`: which prefix goes when pages run out, and a short memory of what went.

Only leaves go, and only those whose pages no page table holds. Worth is when a page was last used, plus what its
recomputing costs beyond the cheapest page's, in the same unit: a turn of the whole pool. So it is least recently used
among equals, and a page far down a long prompt, whose attention reads all before it, stays somewhat longer (the idea of
GreedyDual-Size: Cao and Irani 1997, "Cost-Aware WWW Proxy Caching Algorithms").
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heapify, heappop, heappush

from pagoda.cache.radix import Key, Node, RadixTree

DEAR = 4096
"""Position at which a token's attention costs about what its matrices do (in small models): such a page is worth a turn
of the pool more than the first. Further down it is worth no more, or one dead document would outlive everything.
"""
REMEMBERED = 4
"""Evicted edges that are remembered, for each page of the pool."""


class Eviction:
    """Watches a tree's leaves.

    Args:
        pages: of one KV group: a turn of the pool is so many page uses.
        busy: whether a leaf must stay. One whose pages others hold all the same (a pin, another key's sequence) may go:
            what it follows on is freed after it.
    """

    def __init__(self, pages: int, busy: Callable[[Node], bool]) -> None:
        self.on_evict: Callable[[Node], None] = lambda _: None
        """Called with each node that goes to make room, while it is still in the tree."""
        self._turn = pages
        self._busy = busy
        self._clock = 0
        self._serial = 0
        self._fresh: list[Node] = []
        """Leaves that are not yet in the heap: most that are appended here are soon no leaves any more."""
        self._heap: list[tuple[float, int, Node]] = []
        self._gone: dict[int, None] = {}

    def touch(self, node: Node) -> None:
        """A page is used: found, or new."""
        self._clock += 1
        node.used = self._clock

    def on_leaf(self, node: Node) -> None:
        """A node became a leaf: it may go, as soon as nobody uses it."""
        if not node.queued:
            node.queued = True
            self._fresh.append(node)

    def evict(self, tree: RadixTree) -> bool:
        """Remove the leaf of least worth; False if all that remain must stay."""
        aside, victim = [], None
        self._queue()
        while self._heap and victim is None:
            worth, _, node = heappop(self._heap)
            node.queued = False
            if node.parent is None or node.children:
                continue
            if self._busy(node):
                self.touch(node)
                aside.append(node)
            elif worth < self._worth(node):  # used since it was put here
                self._push(node)
            else:
                victim = node
        for node in aside:
            self._push(node)
        if victim is None:
            return False
        self.forget(tree, victim)
        return True

    def forget(self, tree: RadixTree, node: Node) -> None:
        """Remove a node and all below it; whoever asks for it later is told that it was evicted."""
        self._remember(tree, node)
        for gone in (node, *tree.below(node)):
            self.on_evict(gone)
        tree.remove(node)
        self._tidy(tree)

    def remembers(self, key: Key, digest: int, tokens: tuple[int, ...]) -> bool:
        """Whether a prefix went that had the last of these tokens next, after a page's end of this digest."""
        return hash((key, digest, tokens)) in self._gone

    def check(self, tree: RadixTree) -> None:
        """Assert that each leaf is queued once, and that the heap and the memory do not outgrow the tree."""
        queued = [*self._fresh, *(node for _, _, node in self._heap)]
        assert len(set(map(id, queued))) == len(queued), "a node is queued twice"
        assert all(node.queued for node in queued), "a node is queued and does not know"
        for node in tree.all():
            assert node.children or node.queued, "a leaf that can never be evicted"
        assert len(queued) <= 2 * tree.nodes + 64, "the heap outgrows the tree"
        assert len(self._gone) <= REMEMBERED * self._turn, "too much is remembered"

    def _remember(self, tree: RadixTree, node: Node) -> None:
        tokens = tree.page_tokens(node)
        first = tokens[: node.start % tree.page_size + 1]
        self._gone[hash((tree.key_of(node), tree.digest_before(node), first))] = None
        if len(self._gone) > REMEMBERED * self._turn:
            del self._gone[next(iter(self._gone))]

    def _queue(self) -> None:
        """Put fresh leaves into the heap."""
        for node in self._fresh:
            node.queued = False
            if node.parent is not None and not node.children:
                self._push(node)
        self._fresh.clear()

    def _push(self, node: Node) -> None:
        node.queued = True
        self._serial += 1
        heappush(self._heap, (self._worth(node), self._serial, node))

    def _worth(self, node: Node) -> float:
        return node.used + self._turn * min(node.start / DEAR, 1.0)

    def _tidy(self, tree: RadixTree) -> None:
        """Drop what is no longer in the tree, before it outgrows what is."""
        if len(self._fresh) > tree.nodes + 32:
            self._queue()
        if len(self._heap) > tree.nodes + 32:
            for _, _, node in self._heap:
                node.queued = node.parent is not None
            self._heap = [entry for entry in self._heap if entry[2].queued]
            heapify(self._heap)
