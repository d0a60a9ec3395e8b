"""A client of any OpenAI-compatible server, for measurement: one streamed completion over a connection of its own.

Knows HTTP/1.1 and server-sent events, as much as that takes, and when each piece came; knows no workloads.
"""

from __future__ import annotations

import asyncio
import json
import ssl
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from pagoda.errors import InvalidConfig


@dataclass(slots=True)
class Reply:
    """What came back. Times in seconds of `time.perf_counter()`."""

    sent: float
    status: int = 0
    """0: the connection failed, or was cut."""
    times: list[float] = field(default_factory=list)
    """When each piece of text came."""
    text: str = ""
    usage: dict[str, Any] = field(default_factory=dict)
    finish: str = ""
    error: dict[str, Any] = field(default_factory=dict)
    """The server's, or what went wrong."""
    ended: float = 0.0


class Client:
    """Sends requests to one server.

    Args:
        url: such as `http://127.0.0.1:8000`; a path is put before `/v1`.
        api_key: for the `authorization` header.
        timeout: seconds for a whole answer.

    Raises:
        InvalidConfig: not an http or https address.
    """

    def __init__(self, url: str, api_key: str = "", timeout: float = 600.0) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise InvalidConfig(f"{url!r} is not an address such as http://127.0.0.1:8000")
        self._host, self._tls = parts.hostname, parts.scheme == "https"
        self._port = parts.port or (443 if self._tls else 80)
        self._base = parts.path.rstrip("/").removesuffix("/v1")
        self._key, self._timeout = api_key, timeout

    async def model(self) -> str:
        """The first model that the server lists.

        Raises:
            InvalidConfig: it lists none.
        """
        try:
            async with asyncio.timeout(30):
                async with self._asked("GET", "/v1/models", b"") as (reader, status, headers):
                    body = b"".join([part async for part in _body(reader, headers)])
            if status != 200:
                raise InvalidConfig(f"{self._host}:{self._port} answers {status} to /v1/models: {body[:200]!r}")
            return str(json.loads(body)["data"][0]["id"])
        except (OSError, ValueError, LookupError, EOFError, TimeoutError) as error:
            where = f"{self._host}:{self._port}"
            raise InvalidConfig(f"no model is served at {where}: {type(error).__name__}: {error}") from None

    async def stream(self, path: str, body: dict[str, Any]) -> Reply:
        """Post a body with `stream: true`, and read the answer to its end. Failures are in the reply."""
        reply = Reply(time.perf_counter())
        try:
            async with asyncio.timeout(self._timeout):
                await self._stream(path, json.dumps(body).encode(), reply)
        except (OSError, ValueError, LookupError, EOFError, TimeoutError) as error:
            reply.error = reply.error or {"code": type(error).__name__, "message": str(error)}
        reply.ended = time.perf_counter()
        return reply

    async def _stream(self, path: str, body: bytes, reply: Reply) -> None:
        async with self._asked("POST", path, body) as (reader, reply.status, headers):
            if reply.status != 200:
                raw = b"".join([part async for part in _body(reader, headers)])
                with suppress(ValueError):
                    reply.error = json.loads(raw).get("error", {})
                reply.error = reply.error or {"code": f"http_{reply.status}", "message": raw[:200].decode("latin-1")}
                return
            pending = b""
            async for part in _body(reader, headers):
                now = time.perf_counter()
                *lines, pending = (pending + part).split(b"\n")
                for line in lines:
                    if line.startswith(b"data:") and line[5:].strip() != b"[DONE]":
                        _read(json.loads(line[5:]), now, reply)

    @asynccontextmanager
    async def _asked(
        self, method: str, path: str, body: bytes
    ) -> AsyncIterator[tuple[asyncio.StreamReader, int, dict[str, str]]]:
        """A request sent and the head of its answer read: the body's reader, the status, the headers."""
        context = ssl.create_default_context() if self._tls else None
        reader, writer = await asyncio.open_connection(self._host, self._port, ssl=context)
        try:
            head = [f"{method} {self._base}{path} HTTP/1.1", f"host: {self._host}:{self._port}", "connection: close"]
            head += ["content-type: application/json", f"content-length: {len(body)}"]
            if self._key:
                head.append(f"authorization: Bearer {self._key}")
            writer.write("\r\n".join([*head, "", ""]).encode() + body)
            await writer.drain()
            raw = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
            pairs = (line.partition(":") for line in raw[1:])
            yield reader, int(raw[0].split()[1]), {name.strip().lower(): value.strip() for name, _, value in pairs}
        finally:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()


async def _body(reader: asyncio.StreamReader, headers: dict[str, str]) -> AsyncIterator[bytes]:
    """The body's parts as they come."""
    if headers.get("transfer-encoding", "").lower() == "chunked":
        while size := int((await reader.readline()).split(b";")[0], 16):
            yield await reader.readexactly(size)
            await reader.readexactly(2)
        return
    left = int(headers["content-length"]) if "content-length" in headers else None
    while left is None or left > 0:
        part = await reader.read(65536)
        if not part:
            return
        left = None if left is None else left - len(part)
        yield part


def _read(event: dict[str, Any], now: float, reply: Reply) -> None:
    """One event of a stream of chat or plain completions."""
    if event.get("error"):
        reply.error = event["error"]
    if event.get("usage"):
        reply.usage = event["usage"]
    for choice in event.get("choices") or ():
        text = choice.get("text") or (choice.get("delta") or {}).get("content") or ""
        if text:
            reply.times.append(now)
            reply.text += text
        reply.finish = choice.get("finish_reason") or reply.finish
