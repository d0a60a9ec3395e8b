"""`Tier`: which pages are on disk, which of them go when the budget is spent, and whether reading pays.

Knows names, sizes and measured times. Opens no file, sees no token and no tenant: a page's name stands for all tokens
up to its end.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum, auto

BLOCK = 4096
"""Bytes by which a file system hands out room."""
NEWEST = 0.2
"""What the latest measurement counts for in a running mean."""
AGAIN = 16
"""One in so many restores that do not seem to pay is made all the same: the disk may have become faster."""


class State(Enum):
    """Of a file."""

    WRITING = auto()
    KEPT = auto()
    STRANGE = auto()
    """Not one that can be used here: the first to go when room is needed."""


@dataclass(slots=True)
class Entry:
    """A file."""

    parent: bytes
    size: int
    state: State
    readers: int = 0


class Mean:
    """A running mean of seconds for each token."""

    def __init__(self) -> None:
        self.value: float | None = None

    def add(self, tokens: int, seconds: float) -> None:
        """One more measurement."""
        each = seconds / tokens
        self.value = each if self.value is None else self.value + NEWEST * (each - self.value)


class Tier:
    """What is on disk.

    Args:
        budget: most bytes of all files.
    """

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self.bytes = 0
        self.kept = 0
        """Pages that can be read."""
        self._entries: OrderedDict[bytes, Entry] = OrderedDict()
        """Least lately used first."""
        self._children: Counter[bytes] = Counter()
        self._protected: Counter[bytes] = Counter()
        self.reading, self.copying = Mean(), Mean()
        self.computing: float | None = None
        """Seconds to compute a token, as its engine has it."""
        self._declined = 0

    def __contains__(self, name: bytes) -> bool:
        """Whether a page is there, or about to be."""
        entry = self._entries.get(name)
        return entry is not None and entry.state is not State.STRANGE

    def found(self, name: bytes, parent: bytes, size: int) -> None:
        """A page that was there at the start; those used least lately first."""
        self._put(name, Entry(parent, _blocks(size), State.KEPT))

    def strange(self, name: bytes, size: int) -> None:
        """A file that was there at the start, has a page's name, and cannot be used."""
        self._put(name, Entry(b"", _blocks(size), State.STRANGE))
        self._entries.move_to_end(name, last=False)

    def trim(self) -> list[bytes]:
        """What has to go for the budget to be kept."""
        return self._make_room(0)

    def begin(self, name: bytes, parent: bytes, size: int) -> tuple[bool, list[bytes]]:
        """A page that is not there is about to be written.

        Returns:
            Whether there is room for it, and what must go before.
        """
        assert name not in self, "a page is written twice"
        if name in self._entries:
            self._forget(name)  # the new file takes the place of a strange one
        size = _blocks(size)
        gone = self._make_room(size) if size <= self.budget else []
        fits = self.bytes + size <= self.budget
        if fits:
            self._put(name, Entry(parent, size, State.WRITING))
        return fits, gone

    def written(self, name: bytes) -> None:
        """It can be read."""
        entry = self._entries[name]
        assert entry.state is State.WRITING, "a page was written that nobody asked for"
        entry.state = State.KEPT
        self.kept += 1

    def lost(self, name: bytes) -> None:
        """A page could not be written, or not be read: it is not there."""
        if name in self._entries:
            self._forget(name)

    def run(self, names: Iterable[bytes]) -> int:
        """How many of the first of these can be read."""
        count = 0
        for name in names:
            entry = self._entries.get(name)
            if entry is None or entry.state is not State.KEPT:
                break
            count += 1
        return count

    def touch(self, names: Sequence[bytes]) -> None:
        """A prefix was used: of its pages, in order, the last is the first to go."""
        for name in reversed(names):
            if name in self._entries:
                self._entries.move_to_end(name)

    def hold(self, name: bytes) -> None:
        """A page is being read."""
        self._entries[name].readers += 1

    def let_go(self, name: bytes) -> None:
        """It no longer is; it may have been lost, and written anew, meanwhile."""
        entry = self._entries.get(name)
        if entry is not None and entry.readers:
            entry.readers -= 1

    def clear(self) -> list[bytes]:
        """Forget all that is not a pin's, and not just being written."""
        gone = [n for n, entry in self._entries.items() if entry.state is not State.WRITING and not self.protects(n)]
        for name in gone:
            self._forget(name)
        return gone

    def protects(self, name: bytes) -> bool:
        """Whether a page is a pin's."""
        return self._protected[name] > 0

    def protect(self, names: Iterable[bytes]) -> None:
        """Pages of a pin stay, or may come."""
        self._protected.update(names)

    def expose(self, names: Iterable[bytes]) -> None:
        """They may go."""
        self._protected.subtract(names)
        self._protected = +self._protected

    @property
    def restoring(self) -> float | None:
        """Measured seconds to restore a token; None: not yet measured."""
        if self.reading.value is None:
            return None
        return self.reading.value + (self.copying.value or 0.0)

    def pays(self, tokens: int, ahead: int) -> bool:
        """Whether so many tokens are sooner restored, after `ahead` others, than computed. Unmeasured, it is tried."""
        restore, compute = self.restoring, self.computing
        if restore is None or compute is None or (tokens + ahead) * restore < tokens * compute:
            self._declined = 0
            return True
        self._declined += 1
        return self._declined % AGAIN == 0

    def check(self) -> None:
        """Assert that counts agree with the entries, and that the budget is kept."""
        entries = self._entries.values()
        assert self.bytes == sum(entry.size for entry in entries), "bytes are miscounted"
        assert self.kept == sum(entry.state is State.KEPT for entry in entries), "pages are miscounted"
        assert self.bytes <= self.budget or all(self._stays(n, e) for n, e in self._entries.items()), "over budget"
        assert self._children == Counter(e.parent for e in entries if e.parent), "children are miscounted"
        assert all(entry.readers >= 0 for entry in entries), "more reads ended than began"
        assert all(count > 0 for count in self._protected.values()), "more pins left than came"

    def _make_room(self, size: int) -> list[bytes]:
        """Forget what may go until there is room for so many bytes, or nothing is left that may."""
        gone = []
        left = len(self._entries)
        while self.bytes + size > self.budget and left:
            name, entry = next(iter(self._entries.items()))
            if self._stays(name, entry):
                self._entries.move_to_end(name)  # a parent was used when its children were
                left -= 1
            else:
                self._forget(name)
                gone.append(name)
                left = len(self._entries)
        return gone

    def _stays(self, name: bytes, entry: Entry) -> bool:
        return (
            entry.state is State.WRITING
            or entry.readers > 0
            or self.protects(name)
            or (entry.state is State.KEPT and self._children[name] > 0)
        )

    def _put(self, name: bytes, entry: Entry) -> None:
        assert name not in self._entries, "a file is there twice"
        self._entries[name] = entry
        self.bytes += entry.size
        self.kept += entry.state is State.KEPT
        if entry.parent:
            self._children[entry.parent] += 1

    def _forget(self, name: bytes) -> None:
        entry = self._entries.pop(name)
        self.bytes -= entry.size
        self.kept -= entry.state is State.KEPT
        if entry.parent:
            self._children[entry.parent] -= 1
            if not self._children[entry.parent]:
                del self._children[entry.parent]


def _blocks(size: int) -> int:
    return -(-size // BLOCK) * BLOCK
