"""What the cache's verbs speak of: page tables, what a sequence holds, what was found for it, what `extend` did."""

from __future__ import annotations

from dataclasses import dataclass, field

from pagoda.cache.groups import HOLE, Pages
from pagoda.cache.radix import Key, Node
from pagoda.plan import PageCopy
from pagoda.types import CacheCause

Tables = tuple[tuple[int, ...], ...]
"""Page numbers in order, per KV group; holes before its window."""
NO_TOKEN = -1
"""After tokens that are all to be found: the last one never is."""


@dataclass(frozen=True, slots=True)
class Extension:
    """What `KVCache.extend` did."""

    fits: bool
    """False: pages ran out, and nothing was changed."""
    copies: tuple[PageCopy, ...] = ()
    """To be carried out, in this order, before the positions are written."""
    lack: int = 0
    """How many pages were missing, in the group that lacked most."""
    group: int = 0
    """Which that is."""


READY = Extension(True)


@dataclass(frozen=True, slots=True)
class Path:
    """A path beside a sequence's own: other pages from some position on."""

    base: int
    """Index of its first page that is not in the sequence's own table."""
    first: int
    """Index of its first page that no path before it has."""
    pages: Tables
    """Its pages from `base` on."""
    upto: int
    """One past its last position."""

    @property
    def own(self) -> Tables:
        """Its pages from `first` on."""
        return tuple(table[self.first - self.base :] for table in self.pages)


@dataclass(frozen=True, slots=True)
class Match:
    """The longest prefix found for a sequence, and why it is no longer. Holds good until the cache changes."""

    length: int
    """In tokens; less than the sequence has, as the last one must be computed to get its logits."""
    cause: CacheCause
    units: tuple[Pages, ...] = ()
    """The pages, in order: the sequence's own, then those of pins, then one whose first slots hold the rest."""
    own: tuple[Node, ...] = ()
    """Nodes of whole pages under the sequence's own key."""
    partial: Node | None = None
    """A page whose first slots hold the rest."""
    differs: bool = False
    """Whether something kept goes on here with another token."""
    instead: tuple[int, ...] = ()
    """The first tokens with which what this key itself keeps goes on here."""


@dataclass(slots=True)
class Held:
    """What one sequence holds."""

    key: Key
    tables: Tables
    slots: int
    """Positions from 0 that have slots."""
    committed: int
    """Positions from 0 whose tokens are verified and computed."""
    begins: tuple[int, ...]
    """Of each group, how many pages of the table are holes."""
    path: list[Node] = field(default_factory=list)
    """The tree's nodes of its first pages: those are the tree's pages too."""
    tail: list[int] = field(default_factory=list)
    """Committed tokens after them."""
    paths: list[Path] = field(default_factory=list)
    """Beside its own, while a tree is verified: number 1 is the first of them."""

    @property
    def last(self) -> Node | None:
        """The last node of its path."""
        return self.path[-1] if self.path else None

    def along(self, path: int) -> Tables:
        """The page tables along a path; its own are number 0's."""
        if not path:
            return self.tables
        chosen = self.paths[path - 1]
        return tuple(own[: chosen.base] + pages for own, pages in zip(self.tables, chosen.pages, strict=True))

    def unit(self, index: int) -> Pages:
        """One page of each group, all of the same positions, or holes."""
        return tuple(table[index] for table in self.tables)

    def check(self, name: str, page_size: int, prefixes: bool) -> None:
        """Assert that tables cover its slots, holes before its windows apart, and that what is committed has slots and,
        page by page, is the tree's if that keeps `prefixes`.
        """
        assert self.committed <= self.slots, f"{name}: committed beyond its slots"
        for table, begin in zip(self.tables, self.begins, strict=True):
            assert len(table) == -(-self.slots // page_size), f"{name}: table does not match its slots"
            pages = table[begin:]
            assert len(set(pages)) == len(pages), f"{name} holds a page twice"
            assert HOLE not in pages, f"{name}: a page of its window is not there"
            assert set(table[:begin]) <= {HOLE}, f"{name}: a page before its window"
        if prefixes:
            assert len(self.path) == self.committed // page_size, "whole committed pages are not in the tree"
            assert len(self.tail) == self.committed % page_size, "committed tokens are lost"
        for index, node in enumerate(self.path):
            assert node.pages is not None, "a path has a node without pages"
            assert node.pages[0] == self.tables[0][index], "a sequence and the tree have different pages of one prefix"
            assert node.end == (index + 1) * page_size, "a path skips a page"
