"""`Restores`: prefixes on their way back from disk, in step order.

A restore takes the pages that were read, in order, into the cache as if they had just been computed; a plan loads them
before anything else. Whoever waits for one comes back when all its pages are in place, when one of them cannot be read,
or when patience ends: what is missing is computed. Knows `KVCache`'s verbs, the `Tier` and the `Shelf`; moves no bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from pagoda.cache.groups import Pages
from pagoda.cache.kv import KVCache
from pagoda.cache.names import Names
from pagoda.cache.page_file import PageId
from pagoda.cache.shelf import PAGE, Kind, News, Shelf
from pagoda.cache.tables import NO_TOKEN, Match
from pagoda.cache.tier import Tier
from pagoda.plan import PageMove
from pagoda.types import DiskFault

MOVES = 32
"""Most pages that one plan loads: a few milliseconds."""
PATIENCE_S = 5.0
"""How long a request waits for the disk before it is computed after all."""


class Waiter(Protocol):
    """Whoever waits for a restore."""

    sought: bool
    """Whether it was looked for on disk: that is done once, but again after waiting for what another one ordered."""


@dataclass(slots=True, eq=False)
class Restore:
    """Pages of one prefix on their way back."""

    tenant: str
    tokens: tuple[int, ...]
    """Up to the end of the last page that is restored."""
    pages: list[PageId]
    tickets: list[int]
    first: int
    """Which page of the prefix the first of these is."""
    until: float
    """When patience ends."""
    limit: int
    """How many of the pages can come: those behind one that could not be read are of no use."""
    waiting: list[Waiter] = field(default_factory=list)
    arrived: int = 0
    """Pages read."""
    done: int = 0
    """Pages in place, loaded or found there."""


class Restores:
    """Those under way.

    Args:
        ticket: makes a new ticket.
        clock: seconds.
    """

    def __init__(
        self, cache: KVCache, tier: Tier, shelf: Shelf, names: Names, ticket: Callable[[], int],
        clock: Callable[[], float],
    ) -> None:  # fmt: skip
        self._cache = cache
        self._tier = tier
        self._shelf = shelf
        self._names = names
        self._ticket = ticket
        self._clock = clock
        self._size = cache.page_size
        self._restores: list[Restore] = []
        self._by_ticket: dict[int, tuple[Restore, int]] = {}
        self._by_name: dict[bytes, Restore] = {}
        self.restored = 0
        """Pages loaded so far."""
        self.loading: set[tuple[int, ...]] = set()
        """Pages that the plan under way loads."""

    def __len__(self) -> int:
        return len(self._restores)

    def fetch(self, waiter: Waiter, tenant: str, tokens: tuple[int, ...], match: Match) -> bool:
        """Whether more of these tokens than `match` is being read, or was just ordered."""
        size, waiter.sought = self._size, True
        first, last = match.length // size, (len(tokens) - 1) // size
        if first >= last or not self._tier.kept:
            return False
        pages = self._names.pages(tenant, tokens[: last * size])
        under_way = self._by_name.get(pages[first].name)
        if under_way is not None:
            under_way.waiting.append(waiter)
            waiter.sought = False
            return True
        run = self._tier.run(page.name for page in pages[first:])
        ahead = sum(restore.limit - restore.arrived for restore in self._restores)
        if not run or not self._tier.pays(run * size, ahead * size):
            return False
        self._tier.touch([page.name for page in pages[: first + run]])
        self._order(Restore(
            tenant, tokens[: (first + run) * size], pages[first : first + run], [self._ticket() for _ in range(run)],
            first, self._clock() + PATIENCE_S, run, [waiter],
        ))  # fmt: skip
        return True

    def begin(self) -> tuple[tuple[PageMove, ...], list[Waiter], list[str]]:
        """What the next plan loads, who need not wait any longer, and the pages that did not come in time."""
        self.loading.clear()
        moves: list[PageMove] = []
        held: list[int] = []
        back: list[Waiter] = []
        late: list[str] = []
        for restore in list(self._restores):
            self._load(restore, moves, held)
            if restore.arrived < restore.limit and self._clock() >= restore.until:
                late.append(restore.pages[restore.arrived].name.hex() + PAGE)
                restore.limit = restore.done
            if restore.done >= restore.limit:
                self._end(restore)
                back += restore.waiting
        for sequence in held:
            self._cache.release(sequence)
        return tuple(moves), back, late

    def hear(self, news: News) -> DiskFault | None:
        """A page was read, or could not be: why."""
        restore, index = self._by_ticket.get(news.ticket, (None, 0))
        if restore is None:
            return None
        if news.kind is Kind.READ:
            self._tier.reading.add(self._size, news.seconds)
            restore.arrived = index + 1
            return None
        page = restore.pages[index]
        del self._by_ticket[news.ticket]
        self._tier.lost(page.name)
        self._shelf.remove([page.name.hex() + PAGE])
        restore.limit = min(restore.limit, index)
        return news.fault

    def give_up(self) -> None:
        """What is not in place yet is not wanted any more."""
        for restore in self._restores:
            while restore.done < len(restore.pages):
                self._drop(restore)
            restore.arrived = restore.done

    def check(self) -> None:
        """Assert that each restore is where it can be, and that tickets are of pages that are still to come."""
        for restore in self._restores:
            assert 0 <= restore.done <= restore.arrived <= len(restore.pages), "more pages are in place than came"
            assert restore.limit <= len(restore.pages), "more pages can come than were ordered"
            assert restore.waiting, "a restore for nobody"
        wanted = {ticket for restore in self._restores for ticket in restore.tickets[restore.done :]}
        assert set(self._by_ticket) <= wanted, "a ticket of no restore"

    def _order(self, restore: Restore) -> None:
        self._restores.append(restore)
        for index, (page, ticket) in enumerate(zip(restore.pages, restore.tickets, strict=True)):
            self._tier.hold(page.name)
            self._by_name[page.name] = restore
            self._by_ticket[ticket] = restore, index
            self._shelf.fetch(ticket, page)

    def _load(self, restore: Restore, moves: list[PageMove], held: list[int]) -> None:
        """Take what has arrived into the cache; `held` are to be released."""
        size, at = self._size, restore.first + restore.done
        ready = min(min(restore.arrived, restore.limit) - restore.done, MOVES - len(moves))
        if ready <= 0:
            return
        upto = restore.tokens[: (at + ready) * size]
        there = self._cache.match(restore.tenant, (*upto, NO_TOKEN)).length // size
        skip = min(max(there - at, 0), ready)
        for _ in range(skip):
            self._drop(restore)
        if there < at:  # what it follows on was evicted meanwhile
            restore.limit = restore.done
        elif skip < ready:
            sequence, units, count = -restore.tickets[restore.done], list[Pages](), ready - skip
            while count and not units:  # layers with a window have fewer pages: there is more room once this is passed
                upto = restore.tokens[: (at + skip + count) * size]
                units, count = self._receive(sequence, restore.tenant, upto, (at + skip) * size), count // 2
            held += [sequence] * bool(units)
            moves += [PageMove(self._placed(restore, unit), unit) for unit in units]
            if not units:  # no room
                restore.limit = restore.done

    def _receive(self, sequence: int, tenant: str, tokens: tuple[int, ...], start: int) -> list[Pages]:
        """Pages for the tokens from `start` on. They can be found from here on; `sequence` holds them until it is
        released. None, and nothing is held, if there is no room.
        """
        cache, before = self._cache, (*tokens[:start], NO_TOKEN)
        if cache.admit(sequence, before, tenant, counts=False).length < start:  # a window before it is gone
            cache.release(sequence)
            return []
        if not cache.extend(sequence, start, len(tokens)).fits:
            cache.release(sequence)
            return []
        cache.commit(sequence, tokens[start:])
        return list(zip(*cache.table(sequence), strict=True))[start // self._size :]

    def _placed(self, restore: Restore, unit: tuple[int, ...]) -> int:
        """The next page of a restore is loaded into these; its ticket."""
        ticket = restore.tickets[restore.done]
        del self._by_ticket[ticket]
        self._tier.let_go(restore.pages[restore.done].name)
        self.loading.add(unit)
        restore.done += 1
        self.restored += 1
        return ticket

    def _drop(self, restore: Restore) -> None:
        """The next page of a restore is not wanted."""
        ticket = restore.tickets[restore.done]
        if self._by_ticket.pop(ticket, None) is not None:
            self._shelf.forget(ticket)
            self._tier.let_go(restore.pages[restore.done].name)
        restore.done += 1

    def _end(self, restore: Restore) -> None:
        used = [page.name.hex() + PAGE for page in restore.pages[: restore.done]]
        while restore.done < len(restore.pages):
            self._drop(restore)
        self._restores.remove(restore)
        for page in restore.pages:
            if self._by_name.get(page.name) is restore:
                del self._by_name[page.name]
        self._shelf.touch(used)
