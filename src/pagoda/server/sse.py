"""Server-sent events: a stream of chunks as one HTTP answer.

Knows framing, disconnects and failure in mid-stream; knows nothing of what the chunks say.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from pagoda.server.asgi import ClientGone, log_failure, while_connected
from pagoda.server.errors import describe

DONE = b"data: [DONE]\n\n"
logger = logging.getLogger("pagoda.server")
_encoder = msgspec.json.Encoder()


def frame(chunk: object) -> bytes:
    """One event: the chunk as JSON on a `data:` line (JSON text has no raw line breaks)."""
    return b"data: " + _encoder.encode(chunk) + b"\n\n"


class SseResponse(Response):
    """Sends frames as they come.

    A client that leaves closes the generator at once, wherever it waits. A generator that raises ends the stream with
    an error event, without `[DONE]`, so that no client takes a broken answer for a whole one.
    """

    media_type = "text/event-stream"

    def __init__(self, frames: AsyncGenerator[bytes, None]) -> None:
        super().__init__(headers={"cache-control": "no-cache", "x-accel-buffering": "no"})
        del self.headers["content-length"]
        self._frames = frames

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002
        """Answer: headers at once, then each frame, then the end."""
        try:
            await while_connected(receive, self._send_all(send))
        except ClientGone:
            logger.debug("the client left in mid-stream")
        finally:
            await self._frames.aclose()

    async def _send_all(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        try:
            async for part in self._frames:
                await send({"type": "http.response.body", "body": part, "more_body": True})
        except Exception as error:
            status, detail = describe(error)
            log_failure(error, status)
            await send({"type": "http.response.body", "body": frame(detail), "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})
