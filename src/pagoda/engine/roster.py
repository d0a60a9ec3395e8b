"""`Roster`: every sequence under way, and which of them hold pages.

Knows how sequences come in, lose their pages and leave; not when they should: that is the scheduler's.
"""

from __future__ import annotations

from bisect import insort
from operator import attrgetter

from pagoda.cache import KVCache
from pagoda.engine.queue import WaitingQueue
from pagoda.engine.request import RequestState, Sequence
from pagoda.obs.observer import EngineState


class Roster:
    """Sequences that run (hold pages) and that wait (hold none), each oldest first."""

    def __init__(self, cache: KVCache) -> None:
        self.live: dict[int, Sequence] = {}
        self.running: list[Sequence] = []
        self.waiting = WaitingQueue()
        self._cache = cache
        self._ended: list[int] = []

    def add(self, state: RequestState) -> None:
        """Queue a request's sequences."""
        for sequence in state.sequences:
            self.live[sequence.id] = sequence
            self.waiting.push(sequence)

    def donor(self, head: Sequence) -> Sequence | None:
        """Another choice of the request that holds pages, and so the prompt up to the fork: admission waits for it."""
        if not head.fork_point:
            return None
        return next((other for other in head.state.sequences if other is not head and other.holds_pages), None)

    def admit(self, head: Sequence) -> None:
        """Move the head of the queue among those that run, with what can be shared with it."""
        self.waiting.discard(head)
        donor = self.donor(head)
        if donor is None:
            head.computed = head.cached = self._cache.admit(head.id, head.tokens(0, head.values))
            if not head.preemptions:
                head.found = head.cached
        else:
            self._cache.fork(donor.id, head.id, head.fork_point)
            head.computed = head.fork_point
        head.holds_pages = True
        insort(self.running, head, key=attrgetter("id"))

    def preempt(self) -> Sequence:
        """Take the youngest's pages. It starts again, unless all its tokens are on their way already."""
        victim = self.running.pop()
        self._give_back(victim)
        victim.preemptions += 1
        if victim.known < victim.limit:
            self.waiting.put_back(victim)
        return victim

    def end(self, sequence: Sequence) -> None:
        """Forget a sequence: its pages are free at once, as what is in flight runs before what comes later."""
        del self.live[sequence.id]
        self.waiting.discard(sequence)
        if sequence.holds_pages:
            self.running.remove(sequence)
            self._give_back(sequence)
        if sequence.started:
            self._ended.append(sequence.id)

    def ends(self) -> tuple[int, ...]:
        """Sequences ended since the last call that the runner has met."""
        ends = tuple(self._ended)
        self._ended.clear()
        return ends

    def state(self) -> EngineState:
        """Gauges."""
        return EngineState(len(self.running), len(self.waiting), self._cache.used, self._cache.total)

    def check(self) -> None:
        """Assert that each sequence is in its place, in order, and that lengths and pages agree."""
        self.waiting.check()
        self._cache.check()
        ids = [sequence.id for sequence in self.running]
        assert ids == sorted(ids), "running sequences are out of order"
        assert set(ids) == {s.id for s in self.live.values() if s.holds_pages}, "who runs is who holds pages"
        assert self._cache.used == 0 or ids, "pages are held, and nobody runs"
        for sequence in self.live.values():
            sequence.check()

    def _give_back(self, sequence: Sequence) -> None:
        self._cache.release(sequence.id)
        sequence.holds_pages = False
        sequence.computed = sequence.cached = 0
