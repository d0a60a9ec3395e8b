"""Speculation over HTTP: a request may do without; usage and metrics tell of drafts; the answer is the same."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from pagoda.config import ServerConfig
from pagoda.engine import Engine
from pagoda.engine.speculation import Controller, GuessingDrafter
from pagoda.llm import engine_config, open_engine
from pagoda.obs.metrics import PrometheusObserver
from server.conftest import Running, serving
from server.test_disconnects import soon
from server.test_metrics import values
from tiny import tiny_model

CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "Count."}], "max_tokens": 24, "seed": 11}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """Its drafter is the model itself, which is mostly right, and asked whether that pays or not."""
    path = str(tiny_model(tmp_path_factory.mktemp("tiny"), seed=5))
    config = engine_config(path, threads=2, page_size=8, kv_memory=2**20, speculate=f"draft:{path}")
    opened, observer = open_engine(config), PrometheusObserver()
    opened.engine.close()
    policy = Controller((GuessingDrafter("draft"),), always=True)
    engine = Engine(opened.runner, opened.tokenizer, config.scheduler, observer, speculation=policy)
    engine.start()
    with serving(engine, opened.tokenizer, "echo", ServerConfig(port=0), observer) as running:
        yield running
    engine.close()
    opened.runner.close()


def details(answer: dict[str, Any]) -> tuple[int, int]:
    told = answer["usage"]["completion_tokens_details"]
    return told["accepted_prediction_tokens"], told["rejected_prediction_tokens"]


def test_the_same_answer_with_and_without(server: Running) -> None:
    drafted = server.http.chat(**CHAT).json
    plain = server.http.chat(**CHAT, speculation="off").json
    assert drafted["choices"] == plain["choices"]
    assert details(plain) == (0, 0)
    assert details(drafted)[0] > 8


def test_streams_tell_it_too_and_completions(server: Running) -> None:
    events = server.http.chat(**CHAT, stream=True, stream_options={"include_usage": True}).events
    last = next(event for event in reversed(events) if event != "[DONE]" and event["usage"])
    assert details(last)[0] > 8
    body = {"prompt": "Count.", "max_tokens": 24, "temperature": 0, "n": 2}
    both = server.http.complete(**body).json
    assert details(both)[0] > 16
    assert server.http.complete(**body, speculation="off").json["choices"] == both["choices"]


def test_what_it_may_not_be(server: Running) -> None:
    refused = server.http.chat(**CHAT, speculation="maybe")
    assert refused.status == 400
    assert refused.json["error"]["param"] == "speculation"


def test_drafts_are_counted(server: Running) -> None:
    observer: PrometheusObserver = server.app.state.observer
    before = values(observer)
    accepted, rejected = details(server.http.chat(**CHAT).json)

    def grown(name: str) -> float:
        return values(observer)[name] - before.get(name, 0)

    soon(lambda: grown("pagoda_drafts_total{drafter=draft,right=yes}") == accepted)  # a step is counted at its end
    soon(lambda: grown("pagoda_drafts_total{drafter=draft,right=no}") == rejected)
    soon(lambda: grown("pagoda_drafts_right_sum{drafter=draft}") == accepted)
