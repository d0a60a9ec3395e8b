"""`Names`: what the pages of a prefix are called on disk. Knows tokens and the radix tree; no file."""

from __future__ import annotations

from pagoda.cache.page_file import PageId, Seal
from pagoda.cache.radix import Node, RadixTree, Root


class Names:
    """Of one engine's pages. A node's name is worked out once and kept with it."""

    def __init__(self, tree: RadixTree, seal: Seal) -> None:
        self._tree = tree
        self._seal = seal

    def of(self, node: Node) -> bytes:
        """The name of the page that a node ends."""
        before, path = self._tree.before, []
        while not node.name:
            path.append(node)
            if isinstance(node, Root):
                break
            node = before(node)
        for each in reversed(path):
            if isinstance(each, Root):
                assert isinstance(each.key, str), "a tenant without a name"
                each.name = self._seal.root(each.key)
            else:
                each.name = self._seal.name(before(each).name, self._tree.page_tokens(each))
        return path[0].name if path else node.name

    def page(self, node: Node) -> PageId:
        """The page that a node ends."""
        name, before = self.of(node), self._tree.before(node)
        return PageId(name, before.name, str(self._tree.key_of(node)), before.end, self._tree.page_tokens(node))

    def pages(self, tenant: str, tokens: tuple[int, ...]) -> list[PageId]:
        """The whole pages of a prefix, in order."""
        pages, parent, size = [], self._seal.root(tenant), self._tree.page_size
        for start in range(0, len(tokens) - size + 1, size):
            part = tokens[start : start + size]
            name = self._seal.name(parent, part)
            pages.append(PageId(name, parent, tenant, start, part))
            parent = name
        return pages
