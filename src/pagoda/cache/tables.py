"""What the cache's verbs speak of: page tables, what a sequence holds, what was found for it, what `extend` did."""

from __future__ import annotations

from dataclasses import dataclass, field

from pagoda.cache.radix import Key, Node, Pages
from pagoda.plan import PageCopy
from pagoda.types import CacheCause

Tables = tuple[tuple[int, ...], ...]
"""Page numbers in order, per KV group."""
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
    """How many pages of each group were missing."""


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
    own: tuple[Node, ...] = ()
    """Whole pages under the sequence's own key."""
    pinned: tuple[Node, ...] = ()
    """Whole pages of pins that follow on them."""
    partial: Node | None = None
    """A page whose first slots hold the rest."""
    differs: bool = False
    """Whether something kept goes on here with another token."""
    instead: tuple[int, ...] = ()
    """The first tokens with which what this key itself keeps goes on here."""

    @property
    def units(self) -> list[Pages]:
        """The pages, in order."""
        nodes = [*self.own, *self.pinned] + ([self.partial] if self.partial else [])
        return [node.pages for node in nodes if node.pages is not None]


@dataclass(slots=True)
class Held:
    """What one sequence holds."""

    key: Key
    tables: Tables
    slots: int
    """Positions from 0 that have slots."""
    committed: int
    """Positions from 0 whose tokens are verified and computed."""
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
        """One page of each group, all of the same positions."""
        return tuple(table[index] for table in self.tables)
