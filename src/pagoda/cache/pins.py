"""`Pins`: prefixes that eviction leaves alone, and that every tenant may use.

They are in a radix tree of their own, which never shrinks unasked. Knows nothing of tenants but the owner's name.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from pagoda.cache.pool import PagePool
from pagoda.cache.radix import Found, Node, Pages, RadixTree
from pagoda.types import PinInfo

_ALL = None
"""Pins have no tenant."""


@dataclass(slots=True)
class _Pin:
    owner: str
    tokens: tuple[int, ...]
    path: tuple[Node, ...]
    hits: int = 0


class Pins:
    """Pinned prefixes by number."""

    def __init__(self, page_size: int, pools: Sequence[PagePool]) -> None:
        self._page_size = page_size
        self._pools = pools
        self._tree = RadixTree(page_size, self._hold, self._drop)
        self._pins: dict[int, _Pin] = {}

    def __len__(self) -> int:
        return len(self._pins)

    def add(self, number: int, owner: str, tokens: tuple[int, ...], units: Iterable[Pages]) -> PinInfo:
        """Pin a prefix, whose pages are these."""
        pin = _Pin(owner, tokens, ())
        for pages in units:
            self._lengthen(pin, pages)
        self._pins = {**self._pins, number: pin}  # never changed in place: other threads read it
        return self._info(number, pin)

    def remove(self, number: int) -> bool:
        """Unpin; False if there is no such pin."""
        pin = self._pins.get(number)
        if pin is None:
            return False
        self._pins = {other: kept for other, kept in self._pins.items() if other != number}
        # Pins that end within one of its pages keep that page, and none of the tokens further on.
        within = [other for other in self._pins.values() if other.path[-1] in pin.path]
        units = [self._shorten(other) for other in within]
        self._leave(pin.path)
        for other, pages in zip(within, units, strict=True):
            self._lengthen(other, pages)
            self._drop(pages)
        return True

    def match(self, tokens: tuple[int, ...], most: int) -> Found:
        """The longest prefix of `tokens`, up to `most` of them, that is pinned."""
        return self._tree.match(_ALL, tokens, most)

    def hit(self, tokens: tuple[int, ...], length: int) -> None:
        """The first `length` tokens were found: count the pins that were used whole."""
        for pin in self._pins.values():
            size = len(pin.tokens)
            if size <= length and tokens[:size] == pin.tokens:
                pin.hits += 1

    def infos(self) -> tuple[PinInfo, ...]:
        """All of them. From any thread."""
        return tuple(self._info(number, pin) for number, pin in self._pins.items())

    def nodes(self) -> Iterator[Node]:
        """Every node that holds pages."""
        return (node for node in self._tree.all() if node.pages is not None)

    def check(self) -> None:
        """Assert that the nodes with pages are those that pins go through, each as often as it says."""
        self._tree.check()
        through: dict[int, int] = {}
        for pin in self._pins.values():
            assert len(pin.path) == -(-len(pin.tokens) // self._page_size), "a pin is not whole"
            for index, node in enumerate(pin.path):
                through[id(node)] = through.get(id(node), 0) + 1
                part = pin.tokens[index * self._page_size : (index + 1) * self._page_size]
                assert self._tree.page_tokens(node)[: len(part)] == part, "a pin's page holds other tokens"
        assert {id(node): node.pins for node in self.nodes()} == through, "pins are miscounted"

    def _lengthen(self, pin: _Pin, pages: Pages) -> None:
        """Take a pin one page further."""
        size, index = self._page_size, len(pin.path)
        part = pin.tokens[index * size : (index + 1) * size]
        node, _ = self._tree.insert(_ALL, pin.path[-1] if pin.path else None, part, pages)
        node.pins += 1
        pin.path = (*pin.path, node)

    def _shorten(self, pin: _Pin) -> Pages:
        """Take a pin's last page out of the tree; returned are its pages, still held."""
        pages = pin.path[-1].pages
        assert pages is not None, "a pin ends without a page"
        self._hold(pages)
        self._leave(pin.path[-1:])
        pin.path = pin.path[:-1]
        return pages

    def _leave(self, path: tuple[Node, ...]) -> None:
        for node in reversed(path):
            node.pins -= 1
            if not node.pins:
                assert not node.children, "a pin goes on below a node that none goes through"
                self._tree.remove(node)

    def _info(self, number: int, pin: _Pin) -> PinInfo:
        return PinInfo(number, pin.owner, len(pin.tokens), len(pin.path) * len(self._pools), pin.hits)

    def _hold(self, pages: Pages) -> None:
        for pool, page in zip(self._pools, pages, strict=True):
            pool.pin(page)

    def _drop(self, pages: Pages) -> None:
        for pool, page in zip(self._pools, pages, strict=True):
            pool.unpin(page)
