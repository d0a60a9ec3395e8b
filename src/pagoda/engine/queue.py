"""`WaitingQueue`: sequences that hold no pages, in order of arrival."""

from __future__ import annotations

from collections import OrderedDict

from pagoda.engine.request import Sequence


class WaitingQueue:
    """Oldest first. Every operation is O(1), but for a return: that looks at the older ones that wait too."""

    __slots__ = ("_sequences",)

    def __init__(self) -> None:
        self._sequences: OrderedDict[int, Sequence] = OrderedDict()

    def __len__(self) -> int:
        return len(self._sequences)

    def __contains__(self, sequence: Sequence) -> bool:
        return sequence.id in self._sequences

    def head(self) -> Sequence:
        """The oldest."""
        return next(iter(self._sequences.values()))

    def push(self, sequence: Sequence) -> None:
        """Append the youngest of all."""
        self._sequences[sequence.id] = sequence

    def put_back(self, sequence: Sequence) -> None:
        """Insert a sequence that was admitted before: among the first, so the walk is short."""
        older = []
        for waiting in self._sequences:
            if waiting > sequence.id:
                break
            older.append(waiting)
        self._sequences[sequence.id] = sequence
        for waiting in (sequence.id, *reversed(older)):
            self._sequences.move_to_end(waiting, last=False)

    def discard(self, sequence: Sequence) -> None:
        """Take a sequence out, wherever it is."""
        self._sequences.pop(sequence.id, None)

    def check(self) -> None:
        """Assert that the order is that of arrival, and that all want pages and hold none."""
        assert list(self._sequences) == sorted(self._sequences), "the queue is out of order"
        for sequence in self._sequences.values():
            assert not sequence.holds_pages, f"it waits and holds pages: {sequence}"
            assert sequence.wants, f"it waits and wants nothing: {sequence}"
