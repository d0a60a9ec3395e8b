"""`OpenRequests`: every request accepted and not yet ended, and the only door by which events leave the engine.

So each request ends exactly once, whoever ends it: the engine's thread, the watchdog or `close`. Knows no plans.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable

from pagoda.engine.finish import News, last_event
from pagoda.engine.request import RequestState, Wake
from pagoda.errors import EngineDied, InvalidRequest, Overloaded
from pagoda.obs.observer import Observer
from pagoda.types import FinishReason, GenerateRequest

PATIENCE_S = 1.0
"""How long `fail` waits for a sink that does not return before it goes on without it."""

_log = logging.getLogger(__name__)


class OpenRequests:
    """Safe to use from any thread."""

    def __init__(self, most: int, most_tokens: int, observer: Observer) -> None:
        self._most = most
        self._most_tokens = most_tokens
        self.tokens = 0
        """Prompt tokens of those open."""
        self._by_tenant: dict[str, tuple[int, int]] = {}
        self._observer = observer
        self._changed = threading.Condition()
        self._sending = threading.Lock()
        self._states: dict[str, RequestState] = {}
        self.refusal: EngineDied | None = None
        """Why no more requests are taken."""
        self.over = False
        """Whether the last event has been sent."""
        self.busy_since = 0.0
        """When the first of the present requests came."""

    def add(self, state: RequestState) -> None:
        """Accept a request.

        Raises:
            EngineDied: the engine has stopped, or is stopping.
            Overloaded: as many are open as may be.
            InvalidRequest: one of the same id is open.
        """
        with self._changed:
            if self.refusal is not None:
                raise self.refusal
            self.check_room(state.request.tenant, len(state.request.prompt))
            if state.request.id in self._states:
                raise InvalidRequest(f"a request with id {state.request.id!r} is under way: choose another id")
            if not self._states:
                self.busy_since = time.monotonic()
                self._changed.notify_all()
            self._states[state.request.id] = state
            self._count(state.request, 1)

    def check_room(self, tenant: str, tokens: int) -> None:
        """Raise Overloaded if too much is open for a prompt of so many tokens. A tenant that has less than its part may
        have that all the same, so that nobody is shut out by another; all together never have more than twice what is
        allowed.
        """
        own, own_tokens = self._by_tenant.get(tenant, (0, 0))
        parts = len(self._by_tenant) + (tenant not in self._by_tenant)
        if len(self._states) >= self._most and (parts < 2 or own >= self._most // parts):
            raise Overloaded(
                f"{len(self._states)} requests are under way, as many as max_queued allows: try again later"
            )
        over = self._states and self.tokens + tokens > self._most_tokens
        if over and (parts < 2 or own_tokens + tokens > self._most_tokens // parts):
            raise Overloaded(
                f"requests with {self.tokens} prompt tokens are under way, and {tokens} more are over the "
                f"{self._most_tokens} that max_queued_tokens allows: try again later"
            )

    def get(self, request_id: str) -> RequestState | None:
        """An open request."""
        return self._states.get(request_id)

    def deliver(self, news: Iterable[News]) -> list[str]:
        """Send events, in order; after `fail` they are dropped.

        Returns:
            Requests whose sink raised, and which nobody listens to.
        """
        broken: list[str] = []
        wakes: dict[Wake, None] = {}
        with self._sending:
            for item in news:
                if self.over:
                    return broken
                if not self._send(item):
                    broken.append(item.state.request.id)
                if item.state.wake is not None:
                    wakes[item.state.wake] = None
            for wake in wakes:
                _call(wake)
        return broken

    def refuse(self, error: EngineDied) -> None:
        """Take no more requests."""
        with self._changed:
            self.refusal = self.refusal or error

    def fail(self, error: EngineDied, cut: bool = False) -> bool:
        """End every open request with an error, once and for all; if `cut`, what has begun to be answered ends with
        SHUTDOWN instead.

        Returns:
            False if that was done before.
        """
        self.refuse(error)
        waited = self._sending.acquire(timeout=PATIENCE_S)  # a sink that hangs may be what went wrong
        try:
            with self._changed:
                if self.over:
                    return False
                self.over = True
                self._changed.notify_all()
                states = list(self._states.values())
            for state in states:
                self._end(state, error, cut)
            for wake in dict.fromkeys(state.wake for state in states if state.wake is not None):
                _call(wake)
        finally:
            if waited:
                self._sending.release()
        return True

    def wait_for_work(self) -> bool:
        """Sleep until a request is open; False once none will be."""
        with self._changed:
            self._changed.wait_for(lambda: self._states or self.over)
            return not self.over

    def wait_for_none(self, timeout: float) -> bool:
        """Sleep until no request is open, for at most so many seconds; whether none is."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._states, timeout)

    def __len__(self) -> int:
        return len(self._states)

    def _end(self, state: RequestState, error: EngineDied, cut: bool) -> None:
        now = time.monotonic()
        for index in sorted(state.unfinished):
            sequence = state.sequences[index]
            if cut and sequence.output and not state.request.params.held_back:
                event = last_event(sequence, FinishReason.SHUTDOWN, now)
            else:
                event = last_event(sequence, FinishReason.ERROR, now, error=error)
            self._send(News(state, event, None))

    def _send(self, news: News) -> bool:
        """One event; False if its sink raised."""
        state, event, gap = news
        if event.finish is not None:
            state.unfinished.remove(event.index)
            if not state.unfinished:
                self._forget(state)
        self._observer.emitted(event, gap)
        try:
            state.sink(event)
        except Exception:
            _log.exception("the sink of request %s raised; the request is cancelled", event.request_id)
            return False
        return True

    def _count(self, request: GenerateRequest, sign: int) -> None:
        count, tokens = self._by_tenant.get(request.tenant, (0, 0))
        self.tokens += sign * len(request.prompt)
        self._by_tenant[request.tenant] = count + sign, tokens + sign * len(request.prompt)
        if not count + sign:
            del self._by_tenant[request.tenant]

    def _forget(self, state: RequestState) -> None:
        with self._changed:
            del self._states[state.request.id]
            self._count(state.request, -1)
            if not self._states:
                self._changed.notify_all()


def _call(wake: Wake) -> None:
    """What a client's function raises is its own affair."""
    try:
        wake()
    except Exception:
        _log.exception("a wake-up raised")
