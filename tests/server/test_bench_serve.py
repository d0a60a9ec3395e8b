"""The load client against the server: both count the same, and the client survives whatever a server answers."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from typer.testing import CliRunner

from pagoda.bench.client import Client
from pagoda.bench.outcomes import report
from pagoda.bench.serve import Target, play, text_of
from pagoda.bench.workloads import Ask, Shape, bursts, closed, poisson
from pagoda.cli._app import app
from pagoda.config import SchedulerConfig, ServerConfig
from pagoda.engine import Engine
from pagoda.errors import InvalidConfig
from pagoda.obs.metrics import PrometheusObserver
from server.conftest import MODEL, Running, serving
from server.fakes import ByteTokenizer, EchoRunner
from server.test_metrics import values

Open = Callable[..., Running]


@pytest.fixture
def start() -> Iterator[Open]:
    with ExitStack() as stack:

        def begin(step_s: float = 0.0, **options: Any) -> Running:
            runner, observer = EchoRunner(2000, max_model_len=2000), PrometheusObserver()
            runner.step_s = step_s
            engine = Engine(runner, ByteTokenizer(), SchedulerConfig(**options), observer)  # type: ignore[arg-type]
            engine.start()
            stack.callback(engine.close)
            config = ServerConfig(port=0, max_output_tokens=2000)
            return stack.enter_context(serving(engine, ByteTokenizer(), MODEL, config, observer))

        yield begin


def target(server: Running, **options: Any) -> Target:
    return Target(Client(server.url), MODEL, **options)


def test_client_and_server_agree(start: Open) -> None:
    server = start(step_s=0.04, max_num_seqs=4, chunk=64)
    outcomes = asyncio.run(play(target(server), closed(24, Shape((8, 30), (10, 30)), 3), concurrency=12))
    seen, result = values(server.app.state.observer), report(outcomes)
    assert result["served"] == 24
    assert sum(o.count for o in outcomes) == seen["pagoda_generation_tokens_total"]
    assert sum(o.prompt_tokens for o in outcomes) == seen["pagoda_prompt_tokens_total"]
    ttft = sum(o.ttft for o in outcomes)
    assert ttft == pytest.approx(seen["pagoda_ttft_seconds_sum"], rel=0.02, abs=24 * 0.003)
    tpot = sum(o.tpot for o in outcomes)
    assert tpot == pytest.approx(seen["pagoda_tpot_seconds_sum"], rel=0.02)
    assert sum(sum(o.gaps) for o in outcomes) == pytest.approx(seen["pagoda_itl_seconds_sum"], rel=0.02)
    whole = sum(o.answered for o in outcomes)
    assert whole == pytest.approx(seen["pagoda_e2e_seconds_sum"], rel=0.02, abs=24 * 0.005)


def test_conversations_find_what_was_said_before(start: Open) -> None:
    server = start()
    outcomes = asyncio.run(play(target(server, chat=True), closed(2, Shape((20, 20), (5, 5), turns=3)), 2))
    assert len(outcomes) == 6
    assert all(o.cached_tokens > o.prompt_tokens / 4 for o in outcomes if o.prompt_tokens > 300)
    assert any(o.prompt_tokens > 300 for o in outcomes)


@pytest.mark.parametrize("asks", [poisson(40, 0.5, Shape((5, 9), (2, 4)), 1), bursts(3, 0.2, 2, Shape((5, 9), (2, 4)))])
def test_open_loads_keep_their_times(start: Open, asks: list[Ask]) -> None:
    outcomes = asyncio.run(play(target(start()), asks))
    assert len(outcomes) == len(asks)
    for outcome in outcomes:
        assert -0.001 <= outcome.sent - outcome.ask.at < 0.5
        assert outcome.count == outcome.ask.output


def test_refusals_are_told_apart(start: Open) -> None:
    server = start(step_s=0.02, max_queued=2)
    extra = (("slo", {"ttft_ms": 10_000}),)
    outcomes = asyncio.run(play(target(server, extra=extra), closed(8, Shape((5, 5), (20, 20))), 8))
    result = report(outcomes, ttft=5.0)
    assert result["refusals"] == {"overloaded": 6}
    assert (result["served"], result["refused"], result["kept"]) == (2, 6, 1.0)


def test_prompts_with_the_same_runs_begin_alike() -> None:
    one, two = text_of([("a", 5), ("b", 3)]), text_of([("a", 5), ("c", 9)])
    assert one.split()[:5] == two.split()[:5]
    assert one.split()[5:] != two.split()[5:8]
    assert text_of([("a", 9)]).startswith(text_of([("a", 5)]))


class Raw(threading.Thread):
    """A server that answers every request with the same bytes."""

    def __init__(self, answer: bytes) -> None:
        super().__init__(daemon=True)
        import socket

        self.answer, self.socket = answer, socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.socket.getsockname()[1]}/base/v1"
        self.start()

    def run(self) -> None:
        while True:
            try:
                connection, _ = self.socket.accept()
            except OSError:
                return
            with connection:
                connection.recv(65536)
                connection.sendall(self.answer)


@pytest.mark.parametrize(
    ("answer", "status", "code"),
    [
        (b"", 0, "IncompleteReadError"),
        (b"HTTP/1.1 500 Oops\r\ncontent-length: 4\r\n\r\noops", 500, "http_500"),
        (b'HTTP/1.1 429 No\r\n\r\n{"error": {"code": "slow"}}', 429, "slow"),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\ndat", 200, "IncompleteReadError"),
        (b"HTTP/1.1 200 OK\r\n\r\ndata: {nonsense\n\n", 200, "JSONDecodeError"),
        (b'HTTP/1.1 200 OK\r\n\r\ndata: {"error": {"code": "died"}}\n\n', 200, "died"),
        (b"nonsense\r\n\r\n", 0, "IndexError"),
    ],
)
def test_bad_servers(answer: bytes, status: int, code: str) -> None:
    server = Raw(answer)
    reply = asyncio.run(Client(server.url).stream("/v1/completions", {}))
    server.socket.close()
    assert (reply.status, reply.error.get("code")) == (status, code)


def test_addresses_and_models() -> None:
    for url in ("127.0.0.1:8000", "ftp://x", ""):
        with pytest.raises(InvalidConfig, match="not an address"):
            Client(url)
    with pytest.raises(InvalidConfig, match="no model is served"):
        asyncio.run(Client("http://127.0.0.1:9").model())


def test_the_command(start: Open) -> None:
    server = start()
    load = ["--concurrency", "3", "--requests", "5", "--prompt", "4:6", "--output", "3", "--ttft-target", "5000"]
    result = CliRunner().invoke(app, ["bench", "serve", server.url, *load])
    assert result.exit_code == 0, result.output
    figures = json.loads(result.stdout.splitlines()[-1])
    assert (figures["served"], figures["kept"], figures["model"]) == (5, 1.0, MODEL)
    for wrong in ([], ["--rate", "1", "--burst", "2"], ["--rate", "1", "--prompt", "9:2"]):
        assert CliRunner().invoke(app, ["bench", "serve", server.url, *wrong]).exit_code != 0
