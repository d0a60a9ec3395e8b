"""`Pins`: prefixes that eviction leaves alone. A shared one serves every key, any other its owner's only.

They are in a radix tree of their own, which never shrinks unasked: one root for those that are shared, one for each
owner of others. Who may pin for everyone is not decided here.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from pagoda.cache.groups import HOLE, Groups, Pages
from pagoda.cache.radix import Found, Key, Node, RadixTree
from pagoda.types import PinInfo

_ALL = None
"""The key of pins that are shared: no tenant has it, as a tenant is a string."""


@dataclass(slots=True)
class _Pin:
    owner: str
    shared: bool
    name: str
    created: float
    tokens: tuple[int, ...]
    path: tuple[Node, ...] = ()
    hits: int = 0

    @property
    def key(self) -> Key:
        """Under which it is found."""
        return _ALL if self.shared else self.owner


class Pins:
    """Pinned prefixes by number."""

    def __init__(self, groups: Groups) -> None:
        self._page_size = groups.page_size
        self._groups = groups
        self._tree = RadixTree(groups.page_size, groups.pin, groups.unpin)
        self._pins: dict[int, _Pin] = {}

    def __len__(self) -> int:
        return len(self._pins)

    def add(
        self, number: int, owner: str, tokens: tuple[int, ...], units: Iterable[Pages], shared: bool, name: str
    ) -> PinInfo:
        """Pin a prefix, whose pages are these. Where a longer pin has a hole in the page in which this one ends, it is
        found up to that page only.
        """
        pin = _Pin(owner, shared, name, time.time(), tokens)
        for pages in units:
            self._lengthen(pin, pages)
        self._pins = {**self._pins, number: pin}  # never changed in place: other threads read it
        return self._info(number, pin)

    def find(self, owner: str, tokens: tuple[int, ...], shared: bool) -> PinInfo | None:
        """An owner's pin of exactly this prefix. From any thread."""
        for number, pin in self._pins.items():
            if (pin.owner, pin.shared, pin.tokens) == (owner, shared, tokens):
                return self._info(number, pin)
        return None

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
            self._groups.unpin(pages)
        return True

    def match(self, key: Key, tokens: tuple[int, ...], most: int) -> tuple[Found, ...]:
        """The longest prefix of `tokens`, up to `most` of them, that is pinned for a key alone, and the longest that is
        pinned for all. What is said to be ahead is the key's own.
        """
        if not self._pins:
            return ()
        own, shared = self._tree.match(key, tokens, most), self._tree.match(_ALL, tokens, most)
        if own.length == shared.length and shared.differs:
            own = replace(own, differs=True)
        return own, replace(shared, ahead=())

    def hit(self, key: Key, tokens: tuple[int, ...], length: int) -> None:
        """The first `length` tokens were found for a key: count the pins that serve it and were there whole."""
        for pin in self._pins.values():
            size = len(pin.tokens)
            if size <= length and (pin.shared or pin.owner == key) and tokens[:size] == pin.tokens:
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
                assert self._tree.key_of(node) == pin.key, "a pin serves those it is not for"
                part = pin.tokens[index * self._page_size : (index + 1) * self._page_size]
                assert self._tree.page_tokens(node)[: len(part)] == part, "a pin's page holds other tokens"
        assert {id(node): node.pins for node in self.nodes()} == through, "pins are miscounted"

    def _lengthen(self, pin: _Pin, pages: Pages) -> None:
        """Take a pin one page further."""
        size, index = self._page_size, len(pin.path)
        part = pin.tokens[index * size : (index + 1) * size]
        node, _ = self._tree.insert(pin.key, pin.path[-1] if pin.path else None, part, pages)
        if node.end == index * size + len(part):  # if it goes on, its page would have to hold more than these
            self._tree.fill(node, pages)
        node.pins += 1
        pin.path = (*pin.path, node)

    def _shorten(self, pin: _Pin) -> Pages:
        """Take a pin's last page out of the tree; returned are its pages, still held."""
        pages = pin.path[-1].pages
        assert pages is not None, "a pin ends without a page"
        self._groups.pin(pages)
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
        pages = sum(page != HOLE for node in pin.path for page in node.pages or ())
        return PinInfo(number, pin.owner, pin.shared, pin.name, pin.created, len(pin.tokens), pages, pin.hits)
