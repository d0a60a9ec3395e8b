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
        all_of_them = (own, *self._pins.match(key, tokens, most))
        best, length, units = self._longest(all_of_them)
        nodes = own.nodes[: length // self._groups.page_size]
        if any(found.length > length for found in all_of_them):  # the windows before a later end are gone
            cause = CacheCause.WHOLE if length == most else CacheCause.EVICTED
            return Match(length, cause, units, nodes, best.partial if length == best.length else None)
        cause = self._cause(key, tokens, best)
        return Match(length, cause, units, nodes, best.partial, best.differs, best.ahead)

    def whole(self, owner: str, tokens: tuple[int, ...]) -> list[Pages] | None:
        """The pages by which all of these tokens are found again, for their owner's pin; None if some are gone."""
        most, size = len(tokens), self._groups.page_size
        found = (self._tree.match(owner, tokens, most), *self._pins.match(owner, tokens, most))
        _, length, units = self._longest(found)
        return self._groups.cut(units, length // size * size) if length == most else None

    def _longest(self, all_of_them: tuple[Found, ...]) -> tuple[Found, int, tuple[Pages, ...]]:
        """The one that is found furthest, the first of equals; how far; and the pages."""
        units = list[Pages]()
        for found in all_of_them:
            units = _join(units, [node.pages for node in found.nodes if node.pages is not None])
        best, length = all_of_them[0], -1
        for found in all_of_them:
            if found.length > length and (whole := self._whole_to(units, found)) > length:
                best, length = found, whole
        units = units[: length // self._groups.page_size]
        if length == best.length and best.partial is not None:
            assert best.partial.pages is not None, "a page without a page"
            units.append(best.partial.pages)
        return best, length, tuple(units)

    def _whole_to(self, units: list[Pages], found: Found) -> int:
        if not self._groups.windowed:
            return found.length
        units = units[: len(found.nodes)]
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


def _join(first: list[Pages], second: list[Pages]) -> list[Pages]:
    """Page by page the first, or where it has none or a hole the second."""
    if not first or not second:
        return first or second
    joined = [
        unit if HOLE not in unit else tuple(b if a == HOLE else a for a, b in zip(unit, other, strict=True))
        for unit, other in zip(first, second, strict=False)
    ]
    return joined + first[len(second) :] + second[len(first) :]
