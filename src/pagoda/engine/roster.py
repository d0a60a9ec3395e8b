"""`Roster`: every sequence under way, and which of them hold pages.

Knows how sequences come in, lose their pages and leave; not when they should: that is the scheduler's.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable
from operator import attrgetter

from pagoda.cache import KVCache, Match
from pagoda.engine.beams import Move
from pagoda.engine.queue import WaitingQueue
from pagoda.engine.request import RequestState, Sequence
from pagoda.engine.shares import Shares
from pagoda.engine.urgency import FIRST
from pagoda.obs.observer import EngineState
from pagoda.plan import Chunk, Sampled
from pagoda.types import CacheCause, CacheExplanation


class Roster:
    """Sequences that run (hold pages), oldest first, and that wait (hold none), most urgent first."""

    def __init__(self, cache: KVCache, slots: int) -> None:
        self.live: dict[int, Sequence] = {}
        self.running: list[Sequence] = []
        self.shares = Shares()
        self.waiting = WaitingQueue(self.shares)
        self._cache = cache
        self._slots = slots
        self._ended: list[int] = []

    def add(self, state: RequestState, rank: float = 0.0) -> None:
        """Queue a request's sequences; of beams the first, in which the search begins."""
        for sequence in state.sequences:
            sequence.rank = rank
            self.live[sequence.id] = sequence
            self.shares.opened(sequence.key)
            if state.beams is None or sequence is state.sequences[0]:
                self.waiting.push(sequence)

    def match(self, head: Sequence) -> Match:
        """What the cache has of a sequence's tokens."""
        return self._cache.match(head.key, head.tokens(0, head.values))

    def donor(self, head: Sequence, match: Match) -> Sequence | None:
        """Another choice of the request that holds pages, and so the prompt up to the fork: admission waits for it.

        None if the cache has more: then the head was preempted with an output of its own. None too if all others went
        on so far that they gave back what the fork would see in layers with a window.
        """
        if match.length > head.fork_point or not head.fork_point:
            return None
        others = (other for other in head.state.sequences if other is not head and other.holds_pages)
        return next((other for other in others if self._cache.forks(other.id, head.fork_point)), None)

    def computes(self, head: Sequence, match: Match) -> bool:
        """Whether one that runs is about to have a page or more of the head's tokens beyond what was found."""
        if match.cause is CacheCause.OFF:
            return False
        size, tokens = self._cache.page_size, head.tokens(0, head.values)
        for other in self.running:
            due = len(other.prompt) // size * size
            if self._cache.committed(other.id) < due and other.key == head.key:
                shared = common_prefix(other.prompt, tokens) // size * size
                if shared >= match.length + size:
                    return True
        return False

    def set_aside(self, head: Sequence) -> None:
        """Take the head out of the queue until `come_back`: its pages are being read, and others need not wait."""
        self.waiting.discard(head)

    def come_back(self, sequences: Iterable[object]) -> None:
        """Put sequences that were set aside where they were in the queue, if they are still wanted."""
        for sequence in sequences:
            if isinstance(sequence, Sequence) and sequence.id in self.live:
                self.waiting.push(sequence)

    def admit(self, head: Sequence, match: Match, donor: Sequence | None = None) -> None:
        """Move the head of the queue among those that run, with what its donor or the cache shares with it."""
        self.waiting.discard(head)
        if head.state.cache is None:
            head.state.cache = _explanation(match)
        if donor is None:
            self._cache.admit(head.id, head.tokens(0, head.values), head.key, match)
            head.cached = match.length
            self._run(head, match.length)
        else:
            self._cache.fork(donor.id, head.id, head.fork_point)
            self._run(head, head.fork_point)
        head.sought = False

    def commit(self, sequence: Sequence) -> None:
        """Whatever of it is known and computed by the plans handed over may be found from here on."""
        self._commit(sequence, sequence.verified)

    def verified(self, sequence: Sequence, chunk: Chunk, sampled: Iterable[Sampled]) -> None:
        """What came of a chunk's drafts: if they were a tree, the sequence goes on with the pages of the right path."""
        if chunk.paths:
            self._cache.close_paths(sequence.id, chunk.path([each.token for each in sampled]))

    def preempt(self, victim: Sequence) -> None:
        """Take a sequence's pages. It starts again with what the cache still has of it by then, unless all its tokens
        are on their way already.
        """
        assert not victim.drafting, "a sequence loses its pages while drafts of it are verified"
        self._throw_out(victim)
        victim.rank = FIRST
        if victim.wants:
            self.waiting.push(victim)

    def make_way(self) -> Sequence | None:
        """Nothing is in flight, and nothing can be computed: those that run are short of pages, or are beams that wait
        for others of their request. Take the pages of the youngest such beam: the others get on, if need be one by one.
        """
        victim = next((sequence for sequence in reversed(self.running) if sequence.parked), None)
        if victim is not None:
            self._throw_out(victim)
        return victim

    def regroup(self, state: RequestState, moves: Iterable[Move]) -> None:
        """Beams of the next round: each goes on in its parent's slot, or starts in another with its parent's pages.
        Whatever was in a slot before is gone; without a slot of the step's its tokens are computed again later.
        """
        born = {move.slot: move for move in moves}
        for sequence in state.sequences:
            if sequence.choice not in born or born[sequence.choice].parent != sequence.choice:
                self._vacate(sequence)
        for move in born.values():
            parent, child = state.sequences[move.parent], state.sequences[move.slot]
            if child is not parent and parent.holds_pages and len(self.running) < self._slots:
                self._cache.fork(parent.id, child.id, parent.computed)
                self._run(child, parent.computed)
            child.output[:] = move.tokens
            child.pending = 0
            if not child.holds_pages:
                child.rank = FIRST
                self.waiting.push(child)

    def end(self, sequence: Sequence) -> None:
        """Forget a sequence: its pages are free at once, as what is in flight runs before what comes later."""
        del self.live[sequence.id]
        self.shares.closed(sequence.key)
        self._vacate(sequence)
        if sequence.started:
            self._ended.append(sequence.id)

    def ends(self) -> tuple[int, ...]:
        """Sequences ended since the last call that the runner has met."""
        ends = tuple(self._ended)
        self._ended.clear()
        return ends

    def state(self) -> EngineState:
        """Gauges."""
        cache, running, waiting = self._cache, len(self.running), len(self.waiting)
        return EngineState(running, waiting, cache.used, cache.total, cache.idle, cache.fixed)

    def check(self) -> None:
        """Assert that each sequence is in its place, in order, and that lengths and pages agree."""
        self.waiting.check()
        self.shares.check()
        self._cache.check()
        ids = [sequence.id for sequence in self.running]
        assert ids == sorted(ids), "running sequences are out of order"
        assert set(ids) == {s.id for s in self.live.values() if s.holds_pages}, "who runs is who holds pages"
        assert self._cache.used == self._cache.fixed or ids, "pages are held, and nobody runs"
        for sequence in self.live.values():
            sequence.check()
            self._check_group(sequence)

    def _check_group(self, sequence: Sequence) -> None:
        search, ballot = sequence.state.beams, sequence.state.ballot
        if ballot is not None:
            ballot.check()
        if search is not None:
            search.check()
            beam = next((beam for beam in search.beams if beam.slot == sequence.choice), None)
            wanted = beam is not None and not sequence.parked
            assert beam is not None or not sequence.holds_pages, f"a dead beam holds pages: {sequence}"
            assert beam is None or tuple(sequence.output) == beam.tokens, f"it is not its beam's line: {sequence}"
            assert wanted == (sequence in self.waiting) or sequence.holds_pages, f"a beam is lost: {sequence}"

    def _run(self, sequence: Sequence, computed: int) -> None:
        sequence.holds_pages = True
        sequence.computed = computed
        insort(self.running, sequence, key=attrgetter("id"))

    def _vacate(self, sequence: Sequence) -> None:
        """Neither run nor wait any more, and hold nothing."""
        self.waiting.discard(sequence)
        if sequence.holds_pages:
            self.running.remove(sequence)
            self.commit(sequence)
            self._give_back(sequence)

    def _throw_out(self, victim: Sequence) -> None:
        """All that is computed of it stays in the cache as long as it can, of a beam too."""
        self.running.remove(victim)
        self._commit(victim, min(victim.computed, victim.values))
        self._give_back(victim)
        victim.preemptions += 1

    def _commit(self, sequence: Sequence, upto: int) -> None:
        before = self._cache.committed(sequence.id)
        if before < upto:
            self._cache.commit(sequence.id, sequence.tokens(before, upto))

    def _give_back(self, sequence: Sequence) -> None:
        self._cache.release(sequence.id)
        sequence.holds_pages = False
        sequence.computed = sequence.cached = 0


def common_prefix(a: tuple[int, ...], b: tuple[int, ...]) -> int:
    """How many tokens from the first on are the same. By halves: comparing slices is quick."""
    low, high = 0, min(len(a), len(b))
    while low < high:
        middle = (low + high + 1) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _explanation(match: Match) -> CacheExplanation:
    """What the client is told: what others have is none of its affair."""
    cause = match.cause
    if cause is CacheCause.OTHER_KEY:
        cause = CacheCause.DIFFERENT if match.differs else CacheCause.NEVER_SEEN
    return CacheExplanation(match.length, cause, match.instead)
