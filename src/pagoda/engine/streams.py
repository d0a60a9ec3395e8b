"""Events as iterators: `stream` for asyncio, `iterate` for a plain loop. Leaving either early cancels what is open."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections import deque
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import suppress
from functools import partial
from weakref import WeakValueDictionary

from pagoda.engine.engine import Engine
from pagoda.errors import Overloaded
from pagoda.types import GenerateRequest, TokenEvent


class Mailbox:
    """Carries events from the engine's thread to one event loop: one wake-up a step, however many events."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._mail: deque[tuple[asyncio.Queue[TokenEvent], TokenEvent]] = deque()

    def post(self, stream: asyncio.Queue[TokenEvent], event: TokenEvent) -> None:
        """Leave an event for a stream."""
        self._mail.append((stream, event))

    def wake(self) -> None:
        """Have the loop fetch what was left."""
        with suppress(RuntimeError):  # the loop is closed: nobody reads
            self._loop.call_soon_threadsafe(self._fetch)

    def _fetch(self) -> None:
        while self._mail:
            stream, event = self._mail.popleft()
            stream.put_nowait(event)


_mailboxes: WeakValueDictionary[asyncio.AbstractEventLoop, Mailbox] = WeakValueDictionary()
"""The mailbox of each loop, as long as a stream uses it."""
_mailboxes_lock = threading.Lock()


class EventStream(AsyncIterator[TokenEvent]):
    """One request's events, up to the last of each choice. `aclose` it, or drop it, to cancel the request."""

    def __init__(self, engine: Engine, request: GenerateRequest) -> None:
        self._open = 0
        self._engine = engine
        self._request = request
        self._queue: asyncio.Queue[TokenEvent] = asyncio.Queue()
        loop = asyncio.get_running_loop()
        with _mailboxes_lock:
            self._mailbox = _mailboxes.setdefault(loop, Mailbox(loop))
        engine.submit(request, partial(self._mailbox.post, self._queue), self._mailbox.wake)
        self._open = request.params.n

    async def __anext__(self) -> TokenEvent:
        if not self._open:
            raise StopAsyncIteration
        try:
            event = await self._queue.get()
        except BaseException:  # the task was cancelled: its client has gone
            self._cancel()
            raise
        self._open -= event.finish is not None
        return event

    async def aclose(self) -> None:
        """Cancel the request if it is still open; the stream ends."""
        self._cancel()

    def __del__(self) -> None:
        self._cancel()

    def _cancel(self) -> None:
        if self._open:
            self._open = 0
            self._engine.cancel(self._request.id)


def stream(engine: Engine, request: GenerateRequest) -> EventStream:
    """Submit a request at once, from within an event loop, and iterate over its events.

    Raises:
        Overloaded, EngineDied, InvalidRequest: as `Engine.submit`, and before anything is iterated.
    """
    return EventStream(engine, request)


def iterate(engine: Engine, requests: Iterable[GenerateRequest]) -> Iterator[TokenEvent]:
    """Submit requests, as many at a time as the engine takes, and yield their events as they come.

    Closing the iterator, or an exception such as Ctrl-C's, cancels what is open.

    Raises:
        Overloaded: others' requests leave no room for even one.
        EngineDied: the engine has stopped.
    """
    events: queue.SimpleQueue[TokenEvent] = queue.SimpleQueue()
    unfinished: dict[str, int] = {}
    rest = iter(requests)
    try:
        ahead, full = next(rest, None), False
        while unfinished or ahead is not None:
            while ahead is not None and not full:
                try:
                    engine.submit(ahead, events.put)
                except Overloaded:
                    if not unfinished:
                        raise
                    full = True  # until one of ours ends
                else:
                    unfinished[ahead.id] = ahead.params.n
                    ahead = next(rest, None)
            event = events.get()
            if event.finish is not None:
                unfinished[event.request_id] -= 1
                if not unfinished[event.request_id]:
                    del unfinished[event.request_id]
                    full = False
            yield event
    finally:
        for request_id in unfinished:
            engine.cancel(request_id)
