"""`Pinning`: computes a prefix as a request of one discarded token, and pins what that leaves in the cache.

Knows requests and the cache's pins; not how a request is run.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from itertools import count

from pagoda.cache import KVCache, NoDisk, PinRecord
from pagoda.engine.admission import validate
from pagoda.engine.request import Sink
from pagoda.errors import InvalidRequest, MemoryLimit, PagodaError
from pagoda.plan import Capacity
from pagoda.types import FinishReason, GenerateRequest, PinInfo, SamplingParams, Slo, TokenEvent

_NO_OUTPUT = SamplingParams(max_tokens=1, temperature=0, seed=0, ignore_eos=True)
"""One token must be sampled, and nobody gets it."""
_NO_HURRY = Slo(serve_late=True)
"""A pin is computed however late, whatever the engine's targets are."""


_NO_DISK = NoDisk()
_log = logging.getLogger(__name__)


class Pinning:
    """Pins prefixes. `pin` may be called from any thread."""

    def __init__(
        self,
        cache: KVCache,
        capacity: Capacity,
        submit: Callable[[GenerateRequest, Sink], None],
        disk: NoDisk = _NO_DISK,
    ) -> None:
        self._cache = cache
        self._capacity = capacity
        self._submit = submit
        self._disk = disk
        self._numbers = count(1 + max((record.number for record in disk.records), default=0))

    def pin(self, prompt: Sequence[int], owner: str, shared: bool, name: str) -> Future[PinInfo]:
        """As `Engine.pin`."""
        return self._pin(PinRecord(next(self._numbers), owner, tuple(prompt), shared, name))

    def pin_again(self) -> list[Future[PinInfo]]:
        """As `Engine.pin_again`. One that cannot be pinned any more stays on disk."""
        pinned = []
        for record in self._disk.records:
            try:
                pinned.append(self._pin(record))
            except PagodaError as error:
                _log.warning("pin %d of %d tokens is not pinned again: %s", record.number, len(record.tokens), error)
        return pinned

    def _pin(self, pin: PinRecord) -> Future[PinInfo]:
        request = validate(
            pin.tokens,
            _NO_OUTPUT,
            self._capacity,
            request_id=f"pin-{pin.number}",
            arrival=time.monotonic(),
            tenant=pin.owner,
            slo=_NO_HURRY,
        )
        if not self._cache.prefixes:
            raise InvalidRequest("nothing can be pinned: the engine was started without its prefix cache")
        pinned: Future[PinInfo] = Future()
        before = self._cache.pinned(pin.owner, pin.tokens, pin.shared)
        if before is not None:
            pinned.set_result(before)
            return pinned
        if not self._cache.pin_fits(len(request.prompt)):
            raise self._too_much(request)

        def sink(event: TokenEvent) -> None:
            if event.finish is not None and pinned.set_running_or_notify_cancel():
                try:
                    pinned.set_result(self._conclude(pin, request, event))
                except Exception as error:
                    pinned.set_exception(error)

        self._submit(request, sink)
        return pinned

    def _conclude(self, pin: PinRecord, request: GenerateRequest, event: TokenEvent) -> PinInfo:
        """On the engine's thread, before the next step is planned: what it computed is in the cache, unless it lost its
        pages to older sequences while its token was in flight.
        """
        if event.finish is FinishReason.CANCELLED:
            raise InvalidRequest("the prefix was cancelled before it was computed")
        if event.error is not None:
            raise event.error
        before = self._cache.pinned(pin.owner, pin.tokens, pin.shared)
        if before is not None:
            return before
        if not self._cache.pin_fits(len(request.prompt)):  # others were pinned meanwhile
            raise self._too_much(request)
        info = self._cache.pin(pin.number, pin.owner, pin.tokens, pin.shared, pin.name)
        if info is None:
            raise MemoryLimit("others took the pages of the prefix before it could be pinned: try again later")
        self._disk.pinned(pin)
        return info

    def _too_much(self, request: GenerateRequest) -> MemoryLimit:
        cache, tokens, longest = self._cache, len(request.prompt), self._capacity.max_model_len
        return MemoryLimit(
            f"{tokens} tokens to pin need {cache.pages_for(tokens)} KV pages of {cache.page_size} tokens; of "
            f"{cache.total} pages {cache.fixed} are pinned, and {cache.pages_for(longest)} must be left for one "
            f"sequence of {longest} tokens: pin less, unpin something, or start the engine with a larger kv_memory or "
            "a smaller max_model_len"
        )
