"""`Ballot`: of a request's sequences, the best become its choices. Knows events; nothing of what made them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from pagoda.types import TokenEvent


class Ballot:
    """Keeps the events of all sequences back until each has ended.

    Args:
        sequences: how many there are.
        seats: how many of them are the answer.
        logprobs: whether the answer has log-probabilities; the events must have them in any case.
    """

    def __init__(self, sequences: int, seats: int, logprobs: bool) -> None:
        self._seats = seats
        self._logprobs = logprobs
        self._events: list[list[TokenEvent]] = [[] for _ in range(sequences)]

    def take(self, event: TokenEvent) -> list[TokenEvent]:
        """One event of one sequence; the answer, one event for each choice and the best first, once all have ended."""
        self._events[event.index].append(event)
        if any(not events or events[-1].finish is None for events in self._events):
            return []
        ranked = sorted(map(_joined, self._events), key=lambda whole: (-_mean(whole), whole.index))
        return [self._elected(whole, seat) for seat, whole in enumerate(ranked[: self._seats])]

    def check(self) -> None:
        """Assert that nothing came after a sequence's last event."""
        for events in self._events:
            assert all(event.finish is None for event in events[:-1]), "an event after the last"

    def _elected(self, whole: TokenEvent, seat: int) -> TokenEvent:
        return replace(whole, index=seat, logprobs=whole.logprobs if self._logprobs else ())


def _joined(events: Iterable[TokenEvent]) -> TokenEvent:
    """All of a sequence's events as one."""
    *_, last = events = list(events)
    return replace(
        last,
        token_ids=tuple(token for event in events for token in event.token_ids),
        text="".join(event.text for event in events),
        logprobs=tuple(entry for event in events for entry in event.logprobs),
    )


def _mean(whole: TokenEvent) -> float:
    return sum(entry.logprob for entry in whole.logprobs) / len(whole.logprobs)
