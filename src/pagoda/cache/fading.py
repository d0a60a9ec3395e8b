"""`Fading`: which pages of groups with a window go, when those run out, while their prefixes stay.

A prefix is found again by the windows before its end; those before others of its tokens serve only whoever parts from
it there. So pages of a window count as used when a match ends after them, not when it goes through them, and the least
recently used go first, from wherever they are in the tree (as SGLang's cache for such models leaves "tombstones").
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from pagoda.cache.groups import HOLE, Groups
from pagoda.cache.radix import Node, RadixTree


class Fading:
    """Of every group with a window, the nodes that have a page of it, least recently used first."""

    def __init__(self, groups: Groups) -> None:
        self.on_strip: Callable[[Node], None] = lambda _: None
        """Called with each node that is about to lose a page to make room."""
        self._groups = groups
        self._order: dict[int, OrderedDict[Node, None]] = {group: OrderedDict() for group in groups.windowed}
        self._most = dict.fromkeys(groups.windowed, 64)

    def touch(self, node: Node) -> None:
        """A node's pages are used: found, or new."""
        for group, order in self._order.items():
            if _has(node, group):
                order[node] = None
                order.move_to_end(node)
                if len(order) > self._most[group]:
                    self._tidy(group)

    def strip(self, tree: RadixTree, group: int) -> bool:
        """Take a page of this group from the node used least recently; False if tables or pins hold them all."""
        order, pool = self._order[group], self._groups.pools[group]
        for _ in range(len(order)):
            node, _ = order.popitem(last=False)
            if node.pages is None or not _has(node, group):
                continue
            if pool.in_use(node.pages[group]):
                order[node] = None
                continue
            self.on_strip(node)
            tree.strip(node, group)
            return True
        return False

    def check(self, tree: RadixTree) -> None:
        """Assert that each page can be found to be stripped."""
        for group, order in self._order.items():
            for node in tree.all():
                assert not _has(node, group) or node in order, "a page of a window that can never go"
            assert len(order) <= self._most[group], "more nodes than pages are remembered"

    def _tidy(self, group: int) -> None:
        """Forget nodes that are no longer in the tree or have no page."""
        order = self._order[group] = OrderedDict((node, None) for node in self._order[group] if _has(node, group))
        self._most[group] = 2 * len(order) + 64


def _has(node: Node, group: int) -> bool:
    return node.parent is not None and node.pages is not None and node.pages[group] != HOLE
