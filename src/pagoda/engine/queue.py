"""`WaitingQueue`: sequences that hold no pages, the most urgent of the tenant served least first.

Knows ranks (`urgency`) and shares; no time. A heap for each tenant and one of tenants; what is out of date in either is
put right when it comes to the top. So every operation costs the logarithm of how many wait.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush, heapreplace

from pagoda.engine.request import Sequence
from pagoda.engine.shares import Shares

Place = tuple[float, int]
"""A sequence's rank and id: its place among its tenant's."""
Turn = tuple[int, float, int, str]
"""A tenant's level, the place of its most urgent sequence, and its name."""
SLICE_S = 0.25
"""Seconds of rank in one entry of the backlog."""
SPARE = 64


class WaitingQueue:
    """In order of level, rank and id. `ahead` may be called from any thread."""

    __slots__ = ("_backlog", "_lines", "_sequences", "_shares", "_turns", "tokens")

    def __init__(self, shares: Shares) -> None:
        self._shares = shares
        self._sequences: dict[int, Sequence] = {}
        self._lines: dict[str, list[Place]] = {}
        self._turns: list[Turn] = []
        self._backlog: dict[tuple[str, int], tuple[int, int]] = {}
        self.tokens = 0
        """Tokens that wait to be computed."""

    def __len__(self) -> int:
        return len(self._sequences)

    def __contains__(self, sequence: Sequence) -> bool:
        return sequence.id in self._sequences

    def head(self) -> Sequence | None:
        """Whoever comes first; None if nobody waits."""
        while self._turns:
            turn = self._turns[0]
            now = self._turn(turn[3])
            if now is None:
                heappop(self._turns)
            elif now != turn:
                heapreplace(self._turns, now)
            else:
                return self._sequences[turn[2]]
        return None

    def push(self, sequence: Sequence) -> None:
        """Insert a sequence that holds no pages."""
        self._sequences[sequence.id] = sequence
        line = self._lines.setdefault(sequence.key, [])
        heappush(line, (sequence.rank, sequence.id))
        self._count(sequence, 1)
        if line[0][1] == sequence.id:
            turn = self._turn(sequence.key)
            assert turn is not None
            heappush(self._turns, turn)

    def discard(self, sequence: Sequence) -> None:
        """Take a sequence out, wherever it is; nothing if it does not wait."""
        if self._sequences.pop(sequence.id, None) is None:
            return
        self._count(sequence, -1)
        line = self._lines[sequence.key]
        waiting = self._sequences
        if len(line) > 2 * len(waiting) + SPARE:
            line[:] = [place for place in line if place[1] in waiting]
            heapify(line)
        if len(self._turns) > 2 * len(waiting) + SPARE:
            self._turns = [turn for turn in map(self._turn, list(self._lines)) if turn is not None]
            heapify(self._turns)

    def ahead(self, tenant: str, rank: float) -> tuple[int, int, int]:
        """(Sequences and tokens of the tenant before a rank, tokens of all others), about now."""
        last, sequences, own, others = _slice(rank), 0, 0, 0
        for (name, number), (count, tokens) in list(self._backlog.items()):
            if name != tenant:
                others += tokens
            elif number <= last:
                sequences += count
                own += tokens
        return sequences, own, others

    def _turn(self, tenant: str) -> Turn | None:
        """A tenant's place among the others; None, and it is forgotten, if none of its sequences waits."""
        line = self._lines.get(tenant)
        if line is None:
            return None
        while line and line[0][1] not in self._sequences:
            heappop(line)
        if not line:
            del self._lines[tenant]
            return None
        return (self._shares.level(tenant), *line[0], tenant)

    def _count(self, sequence: Sequence, sign: int) -> None:
        """Keep the backlog."""
        key = sequence.key, _slice(sequence.rank)
        count, tokens = self._backlog.get(key, (0, 0))
        more = sign * _work(sequence)
        self.tokens += more
        if count + sign:
            self._backlog[key] = count + sign, tokens + more
        else:
            del self._backlog[key]

    def check(self) -> None:
        """Assert that each sequence is in its tenant's line, that all want pages and hold none, and the counts."""
        lines = {place[1] for line in self._lines.values() for place in line}
        assert set(self._sequences) <= lines, "a sequence is in no line"
        assert {s.key for s in self._sequences.values()} <= {turn[3] for turn in self._turns}, "a tenant has no turn"
        for sequence in self._sequences.values():
            assert (sequence.rank, sequence.id) in self._lines[sequence.key], "a sequence has another rank"
            assert not sequence.holds_pages, f"it waits and holds pages: {sequence}"
            assert sequence.wants, f"it waits and wants nothing: {sequence}"
        prompts = sum(map(_work, self._sequences.values()))
        assert sum(tokens for _, tokens in self._backlog.values()) == self.tokens == prompts, "the backlog is wrong"


def _work(sequence: Sequence) -> int:
    """Tokens it will have to compute, as they were reckoned when it came: the first of a request's choices computes the
    prompt for all.
    """
    outlook = sequence.state.outlook
    return 1 if sequence.choice else len(sequence.prompt) if outlook is None else outlook.rows


def _slice(rank: float) -> int:
    """The entry of the backlog; what was preempted is in the first."""
    return int(max(rank, -1.0) // SLICE_S)
