"""A client that leaves, wherever its request is, frees it at once; a failure in mid-stream is told as an event."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection, RemoteDisconnected
from typing import Any

import openai
import pytest

from server.conftest import Running
from server.fakes import EchoEngine
from server.rawhttp import sse


def soon(condition: Callable[[], bool], limit: float = 5.0) -> None:
    until = time.monotonic() + limit
    while not condition():
        assert time.monotonic() < until, "it did not come about"
        time.sleep(0.005)


def post(server: Running, **fields: Any) -> HTTPConnection:
    connection = server.http.connect()
    body = {"model": "echo", "messages": [{"role": "user", "content": "x" * 50}]} | fields
    connection.request("POST", "/v1/chat/completions", json.dumps(body))
    return connection


def empty(engine: EchoEngine) -> Callable[[], bool]:
    return lambda: (engine.health().running, engine.health().waiting) == (0, 0)


def test_leaves_in_mid_stream(server: Running, engine: EchoEngine, client: openai.OpenAI) -> None:
    engine.step_s = 0.01
    stream = client.chat.completions.create(
        model="echo", messages=[{"role": "user", "content": "x" * 100}], stream=True, n=2
    )
    next(iter(stream))
    assert engine.health().running == 2
    stream.close()
    soon(empty(engine), 1.0)
    assert len(engine.cancelled) == 1


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("n", [1, 3])
def test_leaves_while_queued(server: Running, engine: EchoEngine, stream: bool, n: int) -> None:
    engine.hold()
    connection = post(server, stream=stream, n=n)
    soon(lambda: engine.health().waiting == n)
    connection.close()
    soon(empty(engine), 1.0)
    assert len(engine.cancelled) == 1


@pytest.mark.parametrize("stream", [False, True])
def test_leaves_with_several_prompts(server: Running, engine: EchoEngine, stream: bool) -> None:
    engine.hold()
    connection = server.http.connect()
    body = {"model": "echo", "prompt": ["a", "b", "c"], "stream": stream}
    connection.request("POST", "/v1/completions", json.dumps(body))
    soon(lambda: engine.health().waiting == 3)
    connection.close()
    soon(empty(engine), 1.0)
    assert len(engine.cancelled) == 3


def test_leaves_while_running_whole(server: Running, engine: EchoEngine) -> None:
    engine.step_s = 0.01
    connection = post(server)
    soon(lambda: engine.health().running == 1)
    connection.close()
    soon(empty(engine), 1.0)


def test_leaves_before_the_body_is_sent(server: Running, engine: EchoEngine) -> None:
    connection = server.http.connect()
    connection.putrequest("POST", "/v1/completions")
    connection.putheader("content-length", "100")
    connection.endheaders(b'{"model":')
    connection.close()
    assert server.http.chat().status == 200


def test_others_go_on(server: Running, engine: EchoEngine) -> None:
    engine.step_s = 0.005
    with ThreadPoolExecutor(8) as pool:
        answers = [pool.submit(server.http.chat) for _ in range(4)]
        leavers = [post(server, stream=True) for _ in range(4)]
        soon(lambda: engine.health().running > 4)
        for each in leavers:
            each.close()
        assert [a.result().json["choices"][0]["message"]["content"] for a in answers] == ["[0]user: hi\n"] * 4
    soon(empty(engine))


def test_death_in_mid_stream_is_an_event(server: Running, engine: EchoEngine) -> None:
    engine.step_s = 0.01
    connection = post(server, stream=True)
    answer = connection.getresponse()
    first = answer.readline()
    assert json.loads(first.removeprefix(b"data: "))["choices"][0]["delta"]["role"] == "assistant"
    engine.kill("gone")
    *_, last = sse(answer.read().lstrip())
    assert last == {
        "error": {"message": "gone", "type": "server_error", "param": None, "code": "engine_unavailable"},
    }
    connection.close()


def test_death_in_mid_stream_reaches_the_client(engine: EchoEngine, client: openai.OpenAI) -> None:
    engine.step_s = 0.01
    stream = client.chat.completions.create(
        model="echo", messages=[{"role": "user", "content": "x" * 100}], stream=True
    )
    next(stream)
    engine.kill("gone")
    with pytest.raises(openai.APIError, match="gone"):
        list(stream)


def test_death_of_a_whole_answer(server: Running, engine: EchoEngine) -> None:
    engine.hold()
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(server.http.chat)
        soon(lambda: engine.health().waiting == 1)
        engine.kill("gone")
        assert (answer.result().status, answer.result().error["message"]) == (503, "gone")


def test_shutdown_ends_streams_with_an_event(server: Running, engine: EchoEngine) -> None:
    engine.hold()
    connection = post(server, stream=True)
    answer = connection.getresponse()
    soon(lambda: engine.health().waiting == 1)
    engine.close()
    (event,) = sse(answer.read())
    assert (event["error"]["code"], event["error"]["message"]) == ("engine_unavailable", "the engine was closed")
    connection.close()


def test_pipelined_nonsense(server: Running) -> None:
    connection = server.http.connect()
    connection.connect()
    connection.sock.sendall(b"NOT HTTP AT ALL\r\n\r\n")
    response = connection.response_class(connection.sock)
    try:
        response.begin()
        assert response.status == 400
    except RemoteDisconnected:
        pass
    connection.close()
    assert server.http.chat().status == 200
