"""`Fading`: which pages of groups with a window go, when those run out, while their prefixes stay.

A prefix is found again by the windows before its end, and before each place where another parts from it. The pages that
a sequence has passed on its way (`passed`) are of no use but to whoever parts from it just there, which nobody did so
far: they go first, the earliest of them first. Then the least recently used, from wherever they are in the tree. So a
long prompt does not cost others the ends by which they are found. SGLang's cache for such models leaves "tombstones" in
its tree likewise, by recency alone.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable

from pagoda.cache.groups import HOLE, Groups
from pagoda.cache.radix import Node, RadixTree


class _Queue:
    """Of one group, the nodes that have a page of it, in the order in which they lose it."""

    def __init__(self, group: int) -> None:
        self.group = group
        self.passed: OrderedDict[Node, None] = OrderedDict()
        self.used: OrderedDict[Node, None] = OrderedDict()
        self.most = 64
        """Nodes that may be remembered before those that are gone are forgotten."""

    def put(self, node: Node, passed: bool) -> None:
        """To the end of one of the two."""
        to, other = (self.passed, self.used) if passed else (self.used, self.passed)
        other.pop(node, None)
        to[node] = None
        to.move_to_end(node)
        if len(self) > self.most:  # most are no longer in the tree
            self.passed, self.used = (
                OrderedDict((each, None) for each in nodes if self.has(each)) for nodes in (self.passed, self.used)
            )
            self.most = 2 * len(self) + 64

    def pop(self) -> Node:
        """The first."""
        return (self.passed or self.used).popitem(last=False)[0]

    def has(self, node: Node) -> bool:
        """Whether a node is in the tree and has a page of this group."""
        return node.parent is not None and node.pages is not None and node.pages[self.group] != HOLE

    def __len__(self) -> int:
        return len(self.passed) + len(self.used)

    def __contains__(self, node: Node) -> bool:
        return node in self.used or node in self.passed


class Fading:
    """Watches the tree's pages of every group with a window."""

    def __init__(self, groups: Groups) -> None:
        self.on_strip: Callable[[Node], None] = lambda _: None
        """Called with each node that is about to lose a page to make room."""
        self._groups = groups
        self._queues = tuple(map(_Queue, groups.windowed))

    def touch(self, node: Node) -> None:
        """A node's pages are new, or were looked at."""
        for queue in self._queues:
            if queue.has(node):
                queue.put(node, passed=False)

    def found(self, path: list[Node] | tuple[Node, ...], length: int) -> None:
        """Something parts from these nodes, which begin with the first page, after so many tokens."""
        for queue in self._queues:
            for node in path[self._groups.begin(queue.group, length) :]:
                node.found = True
                if queue.has(node):
                    queue.put(node, passed=False)

    def passed(self, group: int, path: Iterable[Node]) -> None:
        """A sequence's windows have gone past these nodes."""
        for queue in self._queues:
            if queue.group == group:
                for node in path:
                    if not node.found and queue.has(node):
                        queue.put(node, passed=True)

    def strip(self, tree: RadixTree, group: int) -> bool:
        """Take a page of this group from a node; False if tables or pins hold all that nodes have."""
        queue, pool = self._queues[self._groups.windowed.index(group)], self._groups.pools[group]
        busy: list[tuple[Node, bool]] = []
        victim = None
        while len(queue) and victim is None:
            passed = bool(queue.passed)
            node = queue.pop()
            if node.pages is None or not queue.has(node):
                continue
            if pool.in_use(node.pages[group]):
                busy.append((node, passed))
            else:
                victim = node
        for node, passed in busy:
            queue.put(node, passed)
        if victim is None:
            return False
        self.on_strip(victim)
        tree.strip(victim, group)
        return True

    def check(self, tree: RadixTree) -> None:
        """Assert that each page can be found to be stripped, and that what is gone is forgotten in time."""
        nodes = list(tree.all())
        for queue in self._queues:
            assert all(node in queue for node in nodes if queue.has(node)), "a page of a window that can never go"
            assert not queue.used.keys() & queue.passed.keys(), "a node is used and passed"
            assert len(queue) <= queue.most, "more is remembered than there is"
