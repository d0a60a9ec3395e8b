"""From an HTTP request to its answer: the one walk that both endpoints take.

Knows the order of the steps; each endpoint says what its body means (`Call`) and what its answers look like (`Shape`).
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Protocol

from msgspec import UNSET, UnsetType
from starlette.requests import Request
from starlette.responses import Response

from pagoda.completion import Completion, raise_failure
from pagoda.errors import InvalidRequest
from pagoda.server.asgi import json_response, read_body, while_connected
from pagoda.server.desk import Desk, Events, Order, metered
from pagoda.server.identity import caller_of
from pagoda.server.openai.response import Explain, Head, UsageCount, new_id, now
from pagoda.server.sse import DONE, SseResponse, frame
from pagoda.types import CacheExplanation, GenerateRequest, SamplingParams, Slo, TokenEvent

EXPLAIN_HEADER = "X-Pagoda-Explain"


class Shape(Protocol):
    """How one answer is written; made anew for each request."""

    def chunks(self, place: int, event: TokenEvent) -> Iterable[object]:
        """The chunks that tell an event of the prompt at `place`."""
        ...

    def end_chunk(self, usage: UsageCount | None, explain: Explain | UnsetType) -> object:
        """The chunk that ends a stream which is to tell its usage, or an explanation."""
        ...

    def whole(self, completions: Sequence[Completion], explain: Explain | UnsetType) -> object:
        """The whole answer."""
        ...


@dataclass(frozen=True, slots=True)
class Call:
    """A parsed body."""

    model: str
    params: SamplingParams
    stream: bool
    include_usage: bool
    explain: bool
    """Whether the body asks for an explanation; a header may as well."""
    seed: int | None
    """As the client wrote it; None if the engine is to draw one."""
    prefix: str
    """Of the answer's id."""
    prompt_field: str
    """What the body calls the prompt, for errors about it."""
    encode: Callable[[], Sequence[Sequence[int]]]
    """The prompts' token ids; run off the event loop."""
    shape: Callable[[Head, Desk], Shape]
    slo: Slo
    priority: int
    speculate: bool
    """Whether drafts may be verified for it."""
    repetition_stop: int | None
    """As the client wrote it; None if the caller's own stands."""


async def answer(request: Request, parse: Callable[[bytes, Desk], Call]) -> Response:
    """Parse, tokenise, admit, then stream or collect.

    Raises:
        PagodaError, HttpFailure: the request is refused, or failed before its first event.
        ClientGone: the client left.
    """
    arrival = time.monotonic()
    desk: Desk = request.app.state.desk
    caller, told = caller_of(request), _header(request)
    call = parse(await read_body(request, desk.config.max_body_bytes), desk)
    desk.check_model(call.model)
    order = Order(caller, request.url.path, call.slo, call.priority, call.speculate)
    desk.engine.refuse_early(caller.tenant, order.targets, arrival)
    try:
        prompts = await while_connected(request.receive, desk.pool.run(call.encode))
        params = call.params
        if call.repetition_stop is None and caller.limits.repetition_stop:
            params = replace(params, repetition_stop=caller.limits.repetition_stop)
        requests = desk.admit(prompts, params, new_id(call.prefix), arrival, order)
    except InvalidRequest as error:
        if error.param == "prompt":
            error.param = call.prompt_field
        raise
    head = _head(call, desk, requests)
    shape = call.shape(head, desk)
    ticket = desk.meter.open(caller.tenant, caller.limits, sum(map(len, prompts)))
    events = metered(desk.events(requests), ticket)
    explains = Explains(desk, requests) if call.explain or told else None
    if call.stream:
        return SseResponse(_frames(events, shape, UsageCount(len(requests)), call.include_usage, explains))
    completions = await while_connected(request.receive, desk.complete(requests, events))
    explain: Explain | UnsetType = UNSET
    if explains is not None:
        explains.caches = [completion.choices[0].cache for completion in completions]
        explain = await explains.all()
    return json_response(shape.whole(completions, explain))


class Explains:
    """Gathers what the engine says of each prompt's match, for one answer."""

    def __init__(self, desk: Desk, requests: Sequence[GenerateRequest]) -> None:
        self._desk, self._requests = desk, requests
        self.caches: list[CacheExplanation | None] = [None] * len(requests)

    async def all(self) -> Explain:
        """The explanations, once every prompt's last event is here."""
        return Explain(await self._desk.explain(self._requests, self.caches))


def _header(request: Request) -> bool:
    """Whether `X-Pagoda-Explain` asks for an explanation."""
    value = request.headers.get(EXPLAIN_HEADER, "0").lower()
    if value not in ("0", "1", "false", "true"):
        raise InvalidRequest(f"{EXPLAIN_HEADER} must be 1 or 0, got {value!r:.80}", EXPLAIN_HEADER)
    return value in ("1", "true")


def _head(call: Call, desk: Desk, requests: Sequence[GenerateRequest]) -> Head:
    drawn = requests[0].params.seed
    assert drawn is not None, "admission resolves the seed"
    seed = drawn if call.seed is None else call.seed
    name = requests[0].id if len(requests) == 1 else requests[0].id.rpartition("-")[0]
    return Head(name, desk.model, desk.fingerprint, now(), seed)


async def _frames(
    source: Events, shape: Shape, usage: UsageCount, include_usage: bool, explains: Explains | None
) -> AsyncGenerator[bytes, None]:
    async with aclosing(source) as events:
        async for place, event in events:
            raise_failure(event)
            if event.finish is not None:
                usage.add(place, event)
                if explains is not None:
                    explains.caches[place] = event.cache
            if chunks := b"".join(map(frame, shape.chunks(place, event))):
                yield chunks
    if include_usage or explains is not None:
        explain = UNSET if explains is None else await explains.all()
        yield frame(shape.end_chunk(usage if include_usage else None, explain))
    yield DONE
