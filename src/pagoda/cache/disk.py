"""`Disk`: what goes to the tier and what comes back, decided on the engine's thread, in step order.

A page is saved when it is found a second time (from then on it is hot), when it is evicted, and when its engine closes.
Whole pages only: what a prefix has beyond them is a few tokens, and computed. And whole units: a page of layers with a
window goes to disk with the others' when it is about to go before them. Knows the cache, the `Tier` and the `Shelf`;
moves no bytes.
"""

from __future__ import annotations

import json
import logging
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count

from pagoda.cache.groups import HOLE
from pagoda.cache.kv import KVCache
from pagoda.cache.names import Names
from pagoda.cache.page_file import NAME, PageFault, PageId
from pagoda.cache.radix import Node, Root
from pagoda.cache.restore import Restores, Waiter
from pagoda.cache.shelf import PAGE, PIN, Kind, News, Shelf
from pagoda.cache.tables import NO_TOKEN, Match
from pagoda.cache.tier import Tier
from pagoda.plan import PageMove
from pagoda.types import DiskFault, DiskReport

MOVES = 32
"""Most pages that one plan saves because they are hot: a few milliseconds."""
MOST_HOT = 65_536
"""Pages that may wait to be saved."""
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PinRecord:
    """A pin, as it is kept over a restart."""

    number: int
    owner: str
    tokens: tuple[int, ...]
    shared: bool
    name: str


class NoDisk:
    """Keeps nothing: for an engine without a tier."""

    records: Sequence[PinRecord] = ()
    """Pins that were there, to be pinned again; in order of their numbers."""

    @property
    def busy(self) -> bool:
        """Whether a plan may be due although no sequence has anything to compute."""
        return False

    @property
    def restoring(self) -> int:
        """Restores under way."""
        return 0

    def begin(self) -> tuple[tuple[PageMove, ...], list[Waiter]]:
        """What the next plan loads, and who need not wait any longer. Called before anything else is planned."""
        return (), []

    def fetch(self, waiter: Waiter, tenant: str, tokens: tuple[int, ...], match: Match) -> bool:  # noqa: ARG002
        """Whether more of these tokens than `match` is on its way: `begin` returns the waiter."""
        return False

    def found(self, match: Match) -> None:
        """A sequence was admitted with this."""

    def saves(self) -> tuple[PageMove, ...]:
        """What the plan saves. Called after all else is planned."""
        return ()

    def measure(self, token_s: float | None) -> None:
        """So many seconds it takes to compute a prompt's token, if it is known yet."""

    def clear(self, evict: Callable[[], object]) -> None:
        """Forget all prefixes but pins; `evict` does so in the cache."""
        evict()

    def pinned(self, pin: PinRecord) -> None:
        """A prefix was pinned."""

    def unpinned(self, number: int) -> None:
        """A pin was let go."""

    def report(self) -> DiskReport | None:
        """What is on disk. From any thread."""
        return None

    def close(self, run: Callable[[tuple[PageMove, ...]], object] | None = None, seconds: float = 0.0) -> None:
        """Save what is in the cache and not yet on disk, each lot by `run`, for at most so many seconds; stop."""

    def check(self) -> None:
        """Assert that all agrees."""


class Disk(NoDisk):
    """A tier on disk.

    Args:
        cache: whose pages these are; it keeps prefixes.
        shelf: has its directory open.
        budget: most bytes on disk.
        clock: seconds.
    """

    def __init__(self, cache: KVCache, shelf: Shelf, budget: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._cache = cache
        self._shelf = shelf
        self._tier = Tier(budget)
        self._names = Names(cache.tree, shelf.seal)
        self._tickets = count(1)
        self._restores = Restores(cache, self._tier, shelf, self._names, self._ticket, clock)
        self._writing: dict[int, bytes] = {}
        """Names of pages that are being written, by ticket."""
        self._hot: dict[Node, None] = {}
        self._evicted: list[PageMove] = []
        self._clearing = False
        self._unwanted: set[int] = set()
        """Tickets of pages that are to be removed when they are written."""
        self._pins: dict[int, tuple[str, list[bytes]]] = {}
        """File of the record, and names of the pages, by number."""
        self._saved = self._dropped = 0
        self._faults: Counter[DiskFault] = Counter()
        self._scan()
        self.records = self._scan_pins()
        cache.watch_evictions(self._on_evict)

    @property
    def busy(self) -> bool:
        """Whether a plan may be due although no sequence has anything to compute."""
        return self._shelf.has_news or bool(self._hot and self._shelf.room)

    @property
    def restoring(self) -> int:
        """Restores under way."""
        return len(self._restores)

    # Down.

    def begin(self) -> tuple[tuple[PageMove, ...], list[Waiter]]:
        """What the next plan loads, and who need not wait any longer."""
        self._hear()
        loads, back, late = self._restores.begin()
        for name in late:
            self._blame(DiskFault.SLOW, name, "was not read in time: computed instead")
        return loads, back

    def fetch(self, waiter: Waiter, tenant: str, tokens: tuple[int, ...], match: Match) -> bool:
        """Whether more of these tokens than `match` is on its way: `begin` returns the waiter."""
        return self._restores.fetch(waiter, tenant, tokens, match)

    def found(self, match: Match) -> None:
        """A sequence was admitted with this: its pages are hot."""
        names = [self._names.of(node) for node in match.own]
        self._tier.touch(names)
        for node, name in zip(match.own, names, strict=True):
            if name not in self._tier and len(self._hot) < MOST_HOT:
                self._hot[node] = None

    def saves(self) -> tuple[PageMove, ...]:
        """What the plan saves."""
        moves, self._evicted = self._evicted, []
        while self._hot and len(moves) < MOVES and self._shelf.room:
            node = next(iter(self._hot))
            del self._hot[node]
            if node.parent is not None and self._cache.tree.whole(node):
                self._save(node, moves)
        return tuple(moves)

    def _on_evict(self, node: Node) -> None:
        if not self._clearing and self._cache.tree.whole(node) and node.pages not in self._restores.loading:
            self._save(node, self._evicted)

    def _save(self, node: Node, moves: list[PageMove]) -> None:
        """Save a page, if it is not there and there is room."""
        if node.pages is None or HOLE in node.pages:
            return
        page = self._names.page(node)
        if page.name in self._tier:
            return
        fits, gone = False, list[bytes]()
        if self._shelf.room:
            fits, gone = self._tier.begin(page.name, page.parent, self._shelf.file_bytes(page))
        self._shelf.remove([name.hex() + PAGE for name in gone])
        if not fits:
            self._dropped += 1
            return
        ticket = self._ticket()
        self._writing[ticket] = page.name
        self._shelf.reserve(ticket, page)
        moves.append(PageMove(ticket, node.pages))

    # Up.

    def _hear(self) -> None:
        """Take note of what the shelf did."""
        for news in self._shelf.news():
            if news.kind in (Kind.READ, Kind.UNREAD):
                fault = self._restores.hear(news)
            else:
                fault = news.fault
                self._hear_of_write(news)
            if fault is not None:
                self._faults[fault] += 1

    def _hear_of_write(self, news: News) -> None:
        if news.kind is Kind.COPIED:
            self._tier.copying.add(news.units * self._cache.page_size, news.seconds)
            return
        name = self._writing.pop(news.ticket, None)
        if name is None:
            return
        if news.kind is Kind.WRITTEN:
            self._tier.written(name)
            self._saved += 1
            if news.ticket in self._unwanted:
                self._unwanted.remove(news.ticket)
                self._tier.lost(name)
                self._shelf.remove([name.hex() + PAGE])
        else:
            self._tier.lost(name)
            self._dropped += 1

    def clear(self, evict: Callable[[], object]) -> None:
        """Forget all prefixes but pins, in the cache (`evict`) and on disk."""
        self._clearing = True
        evict()
        self._clearing = False
        self._hot.clear()
        self._restores.give_up()
        self._shelf.remove([name.hex() + PAGE for name in self._tier.clear()])
        self._unwanted.update(ticket for ticket, name in self._writing.items() if not self._tier.protects(name))

    # Pins.

    def pinned(self, pin: PinRecord) -> None:
        """A prefix was pinned: its pages stay on disk, and it is pinned again after a restart."""
        if pin.number not in self._pins:
            name = self._shelf.seal.pin_name(pin.number, pin.owner, pin.tokens)
            more = json.dumps([pin.shared, pin.name]).encode()
            self._shelf.write_pin(PageId(name, bytes(NAME), pin.owner, pin.number, pin.tokens), more)
            self._protect(name.hex() + PIN, pin)
        self.found(self._cache.match(pin.owner, (*pin.tokens, NO_TOKEN)))

    def unpinned(self, number: int) -> None:
        """A pin was let go."""
        if number in self._pins:
            file, names = self._pins.pop(number)
            self._tier.expose(names)
            self._shelf.remove([file])

    def _protect(self, file: str, pin: PinRecord) -> None:
        names = [page.name for page in self._names.pages(pin.owner, pin.tokens)]
        self._pins[pin.number] = file, names
        self._tier.protect(names)

    # At the start and in the end.

    def _scan(self) -> None:
        """Build the index from the files."""
        for info in sorted(self._shelf.directory.files(PAGE), key=lambda info: (info.written, info.name)):
            name = _name_of(info.name)
            if name is None:
                continue
            try:
                page, payload = self._shelf.read_header(info.name)
                if page.name != name or payload != self._shelf.unit_bytes or len(page.tokens) != self._cache.page_size:
                    raise PageFault(DiskFault.FOREIGN, "holds another page than its name says")
                self._tier.found(name, page.parent, info.bytes)
            except PageFault as fault:
                self._blame(fault.fault, info.name, fault)
                self._tier.strange(name, info.bytes)

    def _scan_pins(self) -> list[PinRecord]:
        """Pins' records. Their pages stay until they are pinned again."""
        records = []
        for info in self._shelf.directory.files(PIN):
            try:
                page, more = self._shelf.read_pin(info.name)
            except PageFault as fault:
                self._blame(fault.fault, info.name, fault)
                continue
            records.append(PinRecord(page.start, page.tenant, page.tokens, *json.loads(more)))
            self._protect(info.name, records[-1])
        self._shelf.remove([name.hex() + PAGE for name in self._tier.trim()])
        return sorted(records, key=lambda record: record.number)

    def report(self) -> DiskReport:
        """What is on disk. From any thread."""
        tier = self._tier
        return DiskReport(
            tier.kept, tier.bytes, tier.budget, self._saved, self._restores.restored, self._dropped,
            tuple(sorted(dict(self._faults).items())), self._shelf.writing, tier.restoring, tier.computing,
        )  # fmt: skip

    def measure(self, token_s: float | None) -> None:
        """So many seconds it takes to compute a prompt's token, if it is known yet."""
        self._tier.computing = token_s

    def close(self, run: Callable[[tuple[PageMove, ...]], object] | None = None, seconds: float = 0.0) -> None:
        """Save what is in the cache and not yet on disk, each lot by `run`, for at most so many seconds; stop."""
        until = time.monotonic() + seconds
        if run is not None:
            self._hot.update(dict.fromkeys(self._latest()))
            while self._hot and self._shelf.wait_for_room(until - time.monotonic()):
                self._hear()
                moves = self.saves()
                if moves:
                    run(moves)
        self._shelf.close(max(0.0, until - time.monotonic()))
        self._hear()

    def _latest(self) -> list[Node]:
        """Whole pages in the cache: those of the prefix used last first, each prefix from its beginning on."""
        tree, order = self._cache.tree, dict[Node, None]()
        for end in sorted(filter(tree.whole, tree.all()), key=lambda node: -node.used):
            path, node = [], end
            while node not in order and not isinstance(node, Root):
                path.append(node)
                node = tree.before(node)
            order.update(dict.fromkeys(reversed(path)))
        return list(order)

    def check(self) -> None:
        """Assert that restores, tickets and the tier agree."""
        self._tier.check()
        self._restores.check()

    def _ticket(self) -> int:
        return next(self._tickets)

    def _blame(self, fault: DiskFault, name: str, what: object) -> None:
        self._faults[fault] += 1
        _log.warning("kv_dir %s: %s %s: not used", self._shelf.directory.path, name, what)


def _name_of(file: str) -> bytes | None:
    """The name in a page's file name; None if it is no page's."""
    try:
        name = bytes.fromhex(file.removesuffix(PAGE))
    except ValueError:
        return None
    return name if len(name) == NAME else None
