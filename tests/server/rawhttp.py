"""Plain HTTP for requests that no well-meaning client sends."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    raw: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.raw)

    @property
    def error(self) -> dict[str, Any]:
        """The error, after a look at its shape."""
        assert self.headers["content-type"] == "application/json"
        assert set(self.json) == {"error"}
        error = self.json["error"]
        assert set(error) == {"message", "type", "param", "code"}
        assert isinstance(error["message"], str)
        assert error["message"]
        assert error["type"] == ("server_error" if self.status >= 500 else "invalid_request_error")
        return error  # type: ignore[no-any-return]

    @property
    def events(self) -> list[Any]:
        """The data of each server-sent event; `[DONE]` stays a string."""
        assert self.headers["content-type"].startswith("text/event-stream")
        return [each for each in sse(self.raw)]


def sse(raw: bytes) -> Iterator[Any]:
    """The data of each event in a stream."""
    *events, rest = raw.split(b"\n\n")
    assert rest == b"", "the stream ends within an event"
    for event in events:
        assert event.startswith(b"data: ")
        data = event.removeprefix(b"data: ")
        yield "[DONE]" if data == b"[DONE]" else json.loads(data)


class Http:
    """One request, one connection; `headers` go with each."""

    def __init__(self, url: str, headers: dict[str, str] | None = None) -> None:
        self.host = urlsplit(url).netloc
        self.headers = headers or {}

    def connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection(self.host, timeout=20)

    def ask(self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None) -> Answer:
        connection = self.connect()
        try:
            raw = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
            connection.request(method, path, raw, self.headers | (headers or {}))
            answer = connection.getresponse()
            return Answer(answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read())
        finally:
            connection.close()

    def get(self, path: str, **headers: str) -> Answer:
        return self.ask("GET", path, headers=headers)

    def chat(self, **fields: Any) -> Answer:
        body = {"model": "echo", "messages": [{"role": "user", "content": "hi"}]} | fields
        return self.ask("POST", "/v1/chat/completions", body)

    def complete(self, **fields: Any) -> Answer:
        return self.ask("POST", "/v1/completions", {"model": "echo", "prompt": "hi"} | fields)

    @contextmanager
    def streaming(self, **fields: Any) -> Iterator[Iterator[bytes]]:
        """The lines of a stream as they come; leaving closes the connection."""
        connection = self.connect()
        body = {"model": "echo", "prompt": "hi", "stream": True} | fields
        connection.request("POST", "/v1/completions", json.dumps(body), self.headers)
        answer = connection.getresponse()
        try:
            yield iter(answer.readline, b"")
        finally:
            answer.close()
            connection.close()
