"""What every route needs of HTTP: the body with a cap, news of a client that leaves, request ids, errors.

Knows ASGI; knows nothing of what the bodies mean.
"""

from __future__ import annotations

import asyncio
import logging
import re
import uuid
from collections.abc import Coroutine
from typing import Any, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pagoda.errors import PagodaError
from pagoda.server.errors import HttpFailure, describe, retry_after

T = TypeVar("T")
logger = logging.getLogger("pagoda.server")
_REQUEST_ID = re.compile(r"[\x21-\x7e]{1,128}")


class ClientGone(Exception):
    """The client closed its connection: there is nobody to answer."""


def json_response(value: object, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """A whole answer."""
    return Response(msgspec.json.encode(value), status, headers, media_type="application/json")


def log_failure(error: Exception, status: int) -> None:
    """Log what is not the client's doing: in a line if Pagoda raised it on purpose, else with its traceback."""
    if isinstance(error, PagodaError | HttpFailure):
        if status >= 500:
            logger.warning("%d: %s", status, error)
    else:
        logger.error("%d: %s", status, error, exc_info=error)


def error_response(error: Exception) -> Response:
    """The answer for an error: the status says whose fault it is."""
    status, detail = describe(error)
    log_failure(error, status)
    wait = retry_after(error, status)
    headers = {} if wait is None else {"retry-after": str(wait)}
    if status == 401:
        headers["www-authenticate"] = "Bearer"
    return json_response(detail, status, headers)


async def read_body(request: Request, limit: int) -> bytes:
    """The request's body.

    Raises:
        HttpFailure: 413, it is longer than `limit` bytes; the rest of it is not read.
        ClientGone: the client left before the end.
    """
    too_long = HttpFailure(413, f"the body is over {limit:,} bytes, which is the most read", code="body_too_large")
    length = request.headers.get("content-length", "")
    if length.isdecimal() and int(length) > limit:
        raise too_long
    parts: list[bytes] = []
    size = 0
    while True:
        message = await request.receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        part: bytes = message.get("body", b"")
        size += len(part)
        if size > limit:
            raise too_long
        parts.append(part)
        if not message.get("more_body", False):
            return b"".join(parts)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def while_connected(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """Run `work`, and cancel it the moment the client leaves. Needs the body to have been read.

    It listens by itself, whatever ASGI version the server announces: Starlette stops listening from 2.4 on.

    Raises:
        ClientGone: the client left first; `work` has been cancelled and has finished its clean-up.
    """
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_disconnected(receive))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise ClientGone
    finally:
        for each in (task, gone):
            each.cancel()
        await asyncio.gather(task, gone, return_exceptions=True)


class FrontDoor:
    """The outermost layer: request ids, and an answer to errors that nothing further in expected.

    Answers with the client's `x-request-id`, or with a new one where it sent none that is printable and short.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the call on; the header is added as the answer starts."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        given = next((v.decode("latin-1") for k, v in scope["headers"] if k == b"x-request-id"), "")
        name = given if _REQUEST_ID.fullmatch(given) else f"req_{uuid.uuid4().hex}"
        begun = False

        async def send_named(message: Message) -> None:
            nonlocal begun
            if message["type"] == "http.response.start":
                begun = True
                message = {**message, "headers": [*message["headers"], (b"x-request-id", name.encode())]}
            await send(message)

        try:
            await self.app(scope, receive, send_named)
        except ClientGone:
            logger.debug("the client left before its answer")
        except Exception as error:
            if begun:
                raise
            await error_response(error)(scope, receive, send_named)
