"""From an HTTP request to its answer: the one walk that both endpoints take.

Knows the order of the steps; each endpoint says what its body means (`Call`) and what its answers look like (`Shape`).
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Protocol

from starlette.requests import Request
from starlette.responses import Response

from pagoda.completion import Completion, raise_failure
from pagoda.errors import InvalidRequest
from pagoda.server.asgi import json_response, read_body, while_connected
from pagoda.server.desk import Desk, Events
from pagoda.server.openai.response import Head, UsageCount, new_id, now
from pagoda.server.sse import DONE, SseResponse, frame
from pagoda.types import GenerateRequest, SamplingParams, TokenEvent


class Shape(Protocol):
    """How one answer is written; made anew for each request."""

    def chunks(self, place: int, event: TokenEvent) -> Iterable[object]:
        """The chunks that tell an event of the prompt at `place`."""
        ...

    def usage_chunk(self, usage: UsageCount) -> object:
        """The chunk that ends a stream with `include_usage`."""
        ...

    def whole(self, completions: Sequence[Completion]) -> object:
        """The whole answer."""
        ...


@dataclass(frozen=True, slots=True)
class Call:
    """A parsed body."""

    model: str
    params: SamplingParams
    stream: bool
    include_usage: bool
    seed: int | None
    """As the client wrote it; None if the engine is to draw one."""
    prefix: str
    """Of the answer's id."""
    prompt_field: str
    """What the body calls the prompt, for errors about it."""
    encode: Callable[[], Sequence[Sequence[int]]]
    """The prompts' token ids; run off the event loop."""
    shape: Callable[[Head, Desk], Shape]


async def answer(request: Request, parse: Callable[[bytes, Desk], Call]) -> Response:
    """Parse, tokenise, admit, then stream or collect.

    Raises:
        PagodaError, HttpFailure: the request is refused, or failed before its first event.
        ClientGone: the client left.
    """
    arrival = time.monotonic()
    desk: Desk = request.app.state.desk
    call = parse(await read_body(request, desk.config.max_body_bytes), desk)
    desk.check_model(call.model)
    try:
        prompts = await while_connected(request.receive, desk.pool.run(call.encode))
        requests = desk.admit(prompts, call.params, new_id(call.prefix), arrival)
    except InvalidRequest as error:
        if error.param == "prompt":
            error.param = call.prompt_field
        raise
    head = _head(call, desk, requests)
    shape = call.shape(head, desk)
    events = desk.events(requests)
    if call.stream:
        return SseResponse(_frames(events, shape, UsageCount(len(requests)), call.include_usage))
    completions = await while_connected(request.receive, desk.complete(requests, events))
    return json_response(shape.whole(completions))


def _head(call: Call, desk: Desk, requests: Sequence[GenerateRequest]) -> Head:
    drawn = requests[0].params.seed
    assert drawn is not None, "admission resolves the seed"
    seed = drawn if call.seed is None else call.seed
    name = requests[0].id if len(requests) == 1 else requests[0].id.rpartition("-")[0]
    return Head(name, desk.model, desk.fingerprint, now(), seed)


async def _frames(source: Events, shape: Shape, usage: UsageCount, include_usage: bool) -> AsyncGenerator[bytes, None]:
    async with aclosing(source) as events:
        async for place, event in events:
            raise_failure(event)
            if event.finish is not None:
                usage.add(place, event)
            if chunks := b"".join(map(frame, shape.chunks(place, event))):
                yield chunks
    if include_usage:
        yield frame(shape.usage_chunk(usage))
    yield DONE
