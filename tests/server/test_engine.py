"""The server over the real engine and a machine room that echoes: what the two promise each other."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from pagoda.config import SchedulerConfig
from pagoda.engine import Engine
from server.conftest import CONFIG, MODEL, Running, serving
from server.fakes import ByteTokenizer, EchoRunner
from server.test_disconnects import soon
from server.test_metrics import values

Open = Callable[..., Running]


@pytest.fixture
def start() -> Iterator[Open]:
    """Opens servers over an engine of the options given; all are closed in the end."""
    closing: list[Any] = []

    def begin(pages: int = 64, **options: Any) -> Running:
        from pagoda.obs.metrics import PrometheusObserver

        runner, observer = EchoRunner(pages), PrometheusObserver()
        engine = Engine(runner, ByteTokenizer(), SchedulerConfig(**options), observer)  # type: ignore[arg-type]
        engine.start()
        context = serving(engine, ByteTokenizer(), MODEL, CONFIG, observer)
        closing.append((context, engine, runner))
        running = context.__enter__()
        running.runner = runner
        return running

    yield begin
    for context, engine, runner in reversed(closing):
        context.__exit__(None, None, None)
        runner.release()
        engine.close()


def idle(server: Running) -> bool:
    health = server.engine.health()
    return (health.running, health.waiting) == (0, 0)


def taken(server: Running) -> int:
    """Requests taken on, those included that no step has looked at yet."""
    return len(server.engine._requests)


def test_whole_and_streamed(start: Open) -> None:
    server = start()
    text = "[0]user: hi ☃\n"
    messages = [{"role": "user", "content": "hi ☃"}]
    whole = server.http.chat(messages=messages, seed=5).json
    assert whole["choices"][0]["message"]["content"] == text
    assert whole["choices"][0]["finish_reason"] == "stop"
    chunks = server.http.chat(messages=messages, seed=5, stream=True, stream_options={"include_usage": True}).events
    streamed = "".join(each["choices"][0]["delta"].get("content", "") for each in chunks[:-2])
    assert streamed == text
    prompt = whole["usage"]["prompt_tokens"]
    assert whole["usage"]["completion_tokens"] == len(text.encode()) + 1
    assert chunks[-2]["usage"]["prompt_tokens"] == prompt == len(b"user: hi ...\n")
    assert chunks[-2]["usage"]["prompt_tokens_details"]["cached_tokens"] <= prompt - 1


def test_stop_n_and_logprobs(start: Open) -> None:
    server = start()
    answer = server.http.complete(prompt=["abc stop d", "efg"], n=2, stop=["stop"], max_tokens=50, logprobs=1).json
    assert [choice["text"] for choice in answer["choices"]] == ["[0]abc ", "[1]abc ", "[0]efg", "[1]efg"]
    for choice in answer["choices"]:
        logprobs = choice["logprobs"]
        assert "".join(logprobs["tokens"]).startswith(choice["text"])
        assert len(logprobs["tokens"]) == len(logprobs["top_logprobs"]) == len(logprobs["text_offset"])


def test_thirty_two_at_once_with_few_pages(start: Open) -> None:
    """So few pages that sequences are preempted: nothing may be lost or mixed up."""
    server = start(pages=12, max_num_seqs=16, chunk=24)

    def ask(number: int) -> str:
        prompt, stream = f"number {number} " + "x" * number, bool(number % 2)
        if not stream:
            return str(server.http.complete(prompt=prompt, max_tokens=90).json["choices"][0]["text"])
        events = server.http.complete(prompt=prompt, max_tokens=90, stream=True).events
        assert events[-1] == "[DONE]"
        return "".join(event["choices"][0]["text"] for event in events[:-1])

    with ThreadPoolExecutor(32) as pool:
        answers = list(pool.map(ask, range(32)))
    assert answers == [f"[0]number {number} " + "x" * number for number in range(32)]
    assert idle(server)
    assert values(server.app.state.observer)["pagoda_preemptions_total"] > 0


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("held", [False, True])
def test_a_client_that_leaves_frees_its_pages(start: Open, stream: bool, held: bool) -> None:
    server = start()
    server.runner.step_s = 0.01
    if held:
        server.runner.hold()
    connection = server.http.connect()
    body = {"model": MODEL, "prompt": "x" * 100, "n": 2, "max_tokens": 200, "ignore_eos": True, "stream": stream}
    connection.request("POST", "/v1/completions", json.dumps(body))
    soon(lambda: server.engine.health().running + server.engine.health().waiting == 2)
    connection.close()
    server.runner.release()
    soon(lambda: idle(server), 1.0)
    assert server.http.complete().status == 200
    # The answer leaves the engine a moment before its step is counted.
    soon(lambda: values(server.app.state.observer)["pagoda_pages_used"] == 0)
    assert values(server.app.state.observer)["pagoda_sequences_finished_total{reason=cancelled}"] == 2


def never(*_: Any) -> None:
    raise AssertionError("a prompt was tokenised whose request is refused whatever it is")


def test_a_full_queue_refuses(start: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    server = start(max_queued=2)
    server.runner.hold()
    with ThreadPoolExecutor(2) as pool:
        answers = [pool.submit(server.http.complete) for _ in range(2)]
        soon(lambda: taken(server) == 2)
        for stream in (False, True):
            with monkeypatch.context() as patch:
                patch.setattr(ByteTokenizer, "encode_prompt", never)
                refused = server.http.complete(stream=stream)
            assert (refused.status, refused.error["code"]) == (503, "overloaded")
            assert refused.headers["retry-after"] == "1"
        server.runner.release()
        assert [each.result().status for each in answers] == [200, 200]
    assert values(server.app.state.observer)["pagoda_requests_refused_total{cause=overloaded}"] == 2


def test_several_prompts_of_which_one_is_too_many(start: Open) -> None:
    """Refused as a whole: what was taken on before is let go."""
    server = start(max_queued=2)
    assert server.http.complete(prompt=["a", "b", "c"]).status == 503
    soon(lambda: idle(server))
    assert server.http.complete(prompt=["a", "b"]).status == 200


def test_a_broken_runner(start: Open, caplog: pytest.LogCaptureFixture) -> None:
    server = start()
    server.runner.hold()
    with ThreadPoolExecutor(2) as pool:
        whole, streamed = pool.submit(server.http.complete), pool.submit(server.http.complete, stream=True)
        soon(lambda: taken(server) == 2)
        server.runner.fault = RuntimeError("burnt out")
        server.runner.release()
        assert (whole.result().status, whole.result().error["code"]) == (503, "engine_unavailable")
        assert streamed.result().events[-1]["error"]["code"] == "engine_unavailable"
    health = server.http.get("/health")
    assert health.status == 503
    assert "burnt out" in health.json["reason"]
    assert server.http.chat().status == 503


def test_a_stall_is_a_death(start: Open, caplog: pytest.LogCaptureFixture) -> None:
    server = start(stall_s=0.2)
    server.runner.hold()
    answer = server.http.complete()
    assert (answer.status, answer.error["code"]) == (503, "engine_unavailable")
    assert "no step was finished for 0.2 s" in server.http.get("/health").json["reason"]


def test_metrics_tell_the_story(start: Open) -> None:
    server = start()
    server.http.complete(prompt="x" * 20, n=2, max_tokens=30)
    seen = values(server.app.state.observer)
    expected = {
        "pagoda_requests_total": 1,
        "pagoda_sequences_finished_total{reason=stop}": 2,
        "pagoda_prompt_tokens_total": 20,
        "pagoda_generation_tokens_total": 48,
        "pagoda_ttft_seconds_count": 2,
        "pagoda_tpot_seconds_count": 2,
        "pagoda_e2e_seconds_count": 2,
        "pagoda_queue_seconds_count": 2,
        "pagoda_itl_seconds_count": 46,
        "pagoda_running_sequences": 0,
        "pagoda_pages": 64,
    }
    assert {name: seen[name] for name in expected} == expected
    assert seen["pagoda_ttft_seconds_sum"] <= seen["pagoda_e2e_seconds_sum"]


def test_closing_ends_streams_with_an_event(start: Open, caplog: pytest.LogCaptureFixture) -> None:
    server = start()
    server.runner.step_s = 0.02
    connection = server.http.connect()
    connection.request(
        "POST", "/v1/completions", json.dumps({"model": MODEL, "prompt": "x" * 100, "max_tokens": 100, "stream": True})
    )
    answer = connection.getresponse()
    answer.readline()
    server.engine.close()
    assert b'"code":"engine_unavailable"' in answer.read().splitlines()[-2]
    connection.close()
