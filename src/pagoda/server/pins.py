"""`/v1/cache/pins`: prefixes that are computed now and stay. Each belongs to a tenant; an administrator sees all.

Knows the wire format and who may do what; how a prefix is computed and pinned is the engine's.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from operator import mul
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from pagoda.errors import InvalidRequest, MemoryLimit
from pagoda.openings import FORMS, Opening, parse_opening
from pagoda.plan import Capacity
from pagoda.server.asgi import json_response, read_body, while_connected
from pagoda.server.desk import Desk
from pagoda.server.errors import HttpFailure
from pagoda.server.identity import Caller, caller_of
from pagoda.server.openai.chat import text_parts
from pagoda.types import PinInfo

PREFIX = "pin-"


class PinAnswer(msgspec.Struct):
    """A pin."""

    id: str
    owner: str
    shared: bool
    name: str
    created: int
    tokens: int
    pages: int
    bytes: int | None
    hits: int
    object: str = "cache.pin"


class PinList(msgspec.Struct):
    """The pins that the caller may see."""

    data: list[PinAnswer]
    object: str = "list"


class PinDeleted(msgspec.Struct):
    """A pin that was let go."""

    id: str
    deleted: bool = True
    object: str = "cache.pin"


class Allowance:
    """What tenants may pin for themselves. A tenant's pins are made one after another: two at once are not too much."""

    def __init__(self) -> None:
        self._turns: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    @asynccontextmanager
    async def take(self, tenant: str, tokens: int, desk: Desk) -> AsyncIterator[None]:
        """For so many more tokens, within `ServerConfig.tenant_pin_tokens`.

        Raises:
            HttpFailure: 409, it would be too much.
        """
        async with self._turns[tenant]:
            most = desk.config.tenant_pin_tokens
            taken = sum(pin.tokens for pin in desk.engine.list_pins() if pin.owner == tenant and not pin.shared)
            if taken + tokens > most:
                raise HttpFailure(
                    409,
                    f"{tokens} tokens to pin, and of the {most} that one tenant may pin for itself {taken} are taken: "
                    "pin less, delete a pin, or ask an administrator",
                    code="pins_full",
                )
            yield


def wire_pin(pin: PinInfo, capacity: Capacity) -> PinAnswer:
    """A pin as it is told."""
    pages = capacity.pages_of(pin.tokens, pin.tokens // capacity.page_size * capacity.page_size)
    size = sum(map(mul, pages, capacity.page_bytes)) if capacity.page_bytes else None
    return PinAnswer(
        f"{PREFIX}{pin.id}", pin.owner, pin.shared, pin.name, int(pin.created), pin.tokens, pin.pages, size, pin.hits
    )


async def create_pin(request: Request) -> Response:
    """Compute a prefix, pin it, and say what it takes."""
    desk: Desk = request.app.state.desk
    caller = caller_of(request)
    raw = _decoded(await read_body(request, desk.config.max_body_bytes))
    opening = parse_opening(raw, more=("shared",))
    shared = _shared(raw.get("shared"), caller)
    desk.refuse_hopeless(_characters(opening))
    most = desk.engine.capacity.max_model_len

    async def pinned() -> PinInfo:
        prompt = await desk.pool.run(lambda: opening.encode(desk.tokenizer, most))
        if shared:
            return await asyncio.wrap_future(desk.engine.pin(prompt, caller.tenant, True, opening.name))
        allowance: Allowance = request.app.state.allowance
        async with allowance.take(caller.tenant, len(prompt), desk):
            return await asyncio.wrap_future(desk.engine.pin(prompt, caller.tenant, False, opening.name))

    try:
        info = await while_connected(request.receive, pinned())
    except InvalidRequest as error:
        if error.param == "prompt":
            error.param = next(form for form in FORMS if raw.get(form) is not None)
        raise
    except MemoryLimit as error:
        raise HttpFailure(409, str(error), code="pins_full") from None
    return json_response(wire_pin(info, desk.engine.capacity), 201)


async def list_pins(request: Request) -> Response:
    """The caller's pins; all, if it is an administrator."""
    desk: Desk = request.app.state.desk
    caller = caller_of(request)
    seen = [pin for pin in desk.engine.list_pins() if _belongs(pin, caller)]
    return json_response(PinList([wire_pin(pin, desk.engine.capacity) for pin in seen]))


async def show_pin(request: Request) -> Response:
    """One pin."""
    desk: Desk = request.app.state.desk
    return json_response(wire_pin(_found(request, desk), desk.engine.capacity))


async def delete_pin(request: Request) -> Response:
    """Let a pin go: from then on its pages may be evicted."""
    desk: Desk = request.app.state.desk
    pin = _found(request, desk)
    desk.engine.unpin(pin.id)
    return json_response(PinDeleted(f"{PREFIX}{pin.id}"))


def _found(request: Request, desk: Desk) -> PinInfo:
    """The pin of the path; another's is as if it were not there."""
    caller, name = caller_of(request), request.path_params["id"]
    for pin in desk.engine.list_pins():
        if name == f"{PREFIX}{pin.id}" and _belongs(pin, caller):
            return pin
    raise HttpFailure(404, f"there is no pin {name!r}; GET /v1/cache/pins lists yours", code="pin_not_found")


def _belongs(pin: PinInfo, caller: Caller) -> bool:
    """Whether a caller may see and delete a pin. What serves every tenant is the administrators'."""
    return caller.administrator or (pin.owner == caller.tenant and not pin.shared)


def _characters(opening: Opening) -> int:
    """How much of an opening is to be tokenised."""
    if opening.form == "messages":
        parts = [part for message in opening.content for part in text_parts(message.get("content"))]
        return sum(len(part) for part in parts if isinstance(part, str))
    return len(opening.content) if opening.form == "text" else 0


def _shared(asked: Any, caller: Caller) -> bool:
    if asked is None:
        return caller.administrator
    if not isinstance(asked, bool):
        raise InvalidRequest(f"shared must be true or false, got {asked!r:.80}", "shared")
    if asked and not caller.administrator:
        raise HttpFailure(
            403, "only an administrator's pin serves every tenant: leave shared out", code="administrators_only",
            param="shared",
        )  # fmt: skip
    return asked


def _decoded(body: bytes) -> dict[str, Any]:
    try:
        raw = msgspec.json.decode(body)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"the body is not valid JSON: {error}") from None
    if not isinstance(raw, dict):
        raise InvalidRequest(f"the body must be a JSON object with one of {', '.join(FORMS)}; got {raw!r:.80}")
    return raw
