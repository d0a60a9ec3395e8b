"""Models, health, request ids."""

from __future__ import annotations

import openai
import pytest

from pagoda.errors import MemoryLimit, Overloaded
from server.conftest import Running
from server.fakes import EchoEngine


def test_models(client: openai.OpenAI) -> None:
    models = list(client.models.list())
    assert [(model.id, model.object, model.owned_by) for model in models] == [("echo", "model", "pagoda")]
    assert client.models.retrieve("echo") == models[0]
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("other/model")


def test_health(server: Running, engine: EchoEngine) -> None:
    answer = server.http.get("/health")
    assert answer.status == 200
    assert answer.json == {"status": "ok", "reason": "", "model": "echo", "running": 0, "waiting": 0}
    engine.kill("out of order")
    answer = server.http.get("/health")
    assert answer.status == 503
    assert (answer.json["status"], answer.json["reason"]) == ("dead", "out of order")


def test_request_id(server: Running) -> None:
    assert server.http.get("/health", **{"x-request-id": "abc-1"}).headers["x-request-id"] == "abc-1"
    made = {server.http.get("/nothing").headers["x-request-id"] for _ in range(2)}
    assert len(made) == 2
    for bad in ("x" * 129, "a b", "\xe9"):
        assert server.http.get("/health", **{"x-request-id": bad}).headers["x-request-id"].startswith("req_")


def test_dead_engine(server: Running, engine: EchoEngine) -> None:
    engine.kill()
    for stream in (False, True):
        answer = server.http.chat(stream=stream)
        assert (answer.status, answer.error["code"]) == (503, "engine_unavailable")
        assert answer.headers["retry-after"] == "1"


def test_refused_by_the_engine(server: Running, engine: EchoEngine) -> None:
    engine.refuse = Overloaded("too many")
    for stream in (False, True):
        answer = server.http.complete(stream=stream, prompt=["a", "b"])
        assert (answer.status, answer.error["message"], answer.error["code"]) == (503, "too many", "overloaded")
        assert answer.headers["retry-after"] == "1"
    engine.refuse = MemoryLimit("no page")
    assert server.http.chat().error["code"] == "out_of_memory"


def test_unexpected_error_tells_nothing_of_itself(server: Running, engine: EchoEngine) -> None:
    engine.refuse = ZeroDivisionError("secret")
    for stream in (False, True):
        answer = server.http.chat(stream=stream)
        assert (answer.status, answer.error["code"]) == (500, "internal_error")
        assert "secret" not in answer.error["message"]
        assert answer.headers["x-request-id"]
    engine.refuse = None
    assert server.http.chat().status == 200
