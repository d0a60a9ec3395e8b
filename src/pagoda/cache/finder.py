"""`Finder`: the longest prefix that is kept of a sequence, and why it is no longer.

What is kept under the sequence's own key and what is pinned are looked at together. With windows, a match ends only
where the whole window before its end is kept: behind a longer one, whose windows are gone, it ends earlier.
"""

from __future__ import annotations

from pagoda.cache.eviction import Eviction
from pagoda.cache.groups import HOLE, Groups, Pages
from pagoda.cache.pins import Pins
from pagoda.cache.radix import Found, Key, RadixTree
from pagoda.cache.tables import Match
from pagoda.types import CacheCause

_NOTHING = Found()


class Finder:
    """Looks into the tree and the pins. It changes nothing, so any thread may ask, about now."""

    def __init__(self, groups: Groups, tree: RadixTree, pins: Pins, eviction: Eviction) -> None:
        self._groups = groups
        self._tree = tree
        self._pins = pins
        self._eviction = eviction

    def match(self, key: Key, tokens: tuple[int, ...]) -> Match:
        """The longest prefix kept of a sequence, of len(tokens) - 1 tokens at most."""
        most = len(tokens) - 1
        own = self._tree.match(key, tokens, most)
        pinned = self._pins.match(key, tokens, most) if self._pins else _NOTHING
        best, length, units = self._longest(own, pinned)
        nodes = own.nodes[: length // self._groups.page_size]
        if length < max(own.length, pinned.length):  # the windows before a later end are gone
            cause = CacheCause.WHOLE if length == most else CacheCause.EVICTED
            return Match(length, cause, units, nodes, best.partial if length == best.length else None)
        cause = self._cause(key, tokens, best)
        return Match(length, cause, units, nodes, best.partial, best.differs, best.ahead)

    def whole(self, owner: str, tokens: tuple[int, ...]) -> list[Pages] | None:
        """The pages by which all of these tokens are found again, for their owner's pin; None if some are gone."""
        own, pinned = self._tree.match(owner, tokens, len(tokens)), self._pins.match(owner, tokens, len(tokens))
        _, length, units = self._longest(own, pinned)
        size = self._groups.page_size
        return self._groups.cut(units, length // size * size) if length == len(tokens) else None

    def _longest(self, own: Found, pinned: Found) -> tuple[Found, int, tuple[Pages, ...]]:
        """Of both, the one that is found further; how far; and the pages."""
        both = _join(_pages(own), _pages(pinned))
        ends = [(found, self._whole_to(both, found)) for found in (own, pinned)]
        best, length = ends[0] if ends[0][1] >= ends[1][1] else ends[1]
        units = both[: length // self._groups.page_size]
        if length == best.length and best.partial is not None:
            assert best.partial.pages is not None, "a page without a page"
            units.append(best.partial.pages)
        return best, length, tuple(units)

    def _whole_to(self, both: list[Pages], found: Found) -> int:
        if not self._groups.windowed:
            return found.length
        units = both[: len(found.nodes)]
        if found.partial is not None:
            assert found.partial.pages is not None, "a page without a page"
            units.append(found.partial.pages)
        return self._groups.whole_to(units, found.length)

    def _cause(self, key: Key, tokens: tuple[int, ...], found: Found) -> CacheCause:
        """Why a match is no longer."""
        at, size = found.length, self._groups.page_size
        if at == len(tokens) - 1:
            return CacheCause.WHOLE
        digest = found.nodes[-1].digest if found.nodes else 0
        page = at - at % size
        if self._eviction.remembers(key, digest, tokens[page : at + 1]):
            return CacheCause.EVICTED
        if self._tree.holds_elsewhere(digest, tokens[page : page + size]):
            return CacheCause.OTHER_KEY
        return CacheCause.DIFFERENT if found.differs else CacheCause.NEVER_SEEN


def _pages(found: Found) -> list[Pages]:
    return [node.pages for node in found.nodes if node.pages is not None]


def _join(own: list[Pages], pinned: list[Pages]) -> list[Pages]:
    """Page by page the first, or where it has none or a hole the second."""
    if not pinned:
        return own
    joined = [
        unit if HOLE not in unit else tuple(b if a == HOLE else a for a, b in zip(unit, other, strict=True))
        for unit, other in zip(own, pinned, strict=False)
    ]
    return joined + own[len(pinned) :] + pinned[len(own) :]
