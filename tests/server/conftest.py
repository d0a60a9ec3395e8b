"""A server on a free port in this process, over the echo engine."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import openai
import pytest
import uvicorn

from pagoda.config import ServerConfig
from pagoda.obs.metrics import PrometheusObserver
from pagoda.server.app import build_app
from pagoda.server.identity import Identify, one_tenant
from pagoda.server.run import bind, url_of
from server.fakes import ByteTokenizer, EchoEngine
from server.rawhttp import Http

MODEL = "echo"
CONFIG = ServerConfig(port=0, max_output_tokens=200, max_body_bytes=100_000)


@dataclass
class Running:
    engine: Any
    url: str
    http: Http
    app: Any
    runner: Any = None

    def client(self, **options: Any) -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0, timeout=20, **options)


class Quiet(uvicorn.Server):
    """uvicorn in a thread, without signals."""

    def __init__(self, app: Any) -> None:
        super().__init__(uvicorn.Config(app, lifespan="off", log_config=None, timeout_graceful_shutdown=5))
        self.ready = threading.Event()

    async def startup(self, sockets: Any = None) -> None:
        await super().startup(sockets)
        self.ready.set()


@contextmanager
def serving(
    engine: Any,
    tokenizer: Any,
    model: str,
    config: ServerConfig,
    observer: PrometheusObserver | None = None,
    identify: Identify = one_tenant,
    **options: Any,
) -> Iterator[Running]:
    """A server over a started engine, in a thread of its own."""
    app = build_app(engine, tokenizer, model, config, observer, identify, **options)
    sock = bind(config)
    url = url_of(sock)
    server = Quiet(app)
    thread = threading.Thread(target=lambda: asyncio.run(server.serve([sock])), daemon=True)
    thread.start()
    assert server.ready.wait(10)
    yield Running(engine, url, Http(url), app)
    server.should_exit = True
    thread.join(10)
    app.state.desk.pool.check()
    app.state.desk.pool.close()
    assert not thread.is_alive(), "the server did not stop"


@contextmanager
def echoing() -> Iterator[Running]:
    """The echo engine and a server over it."""
    engine = EchoEngine()
    engine.start()
    with serving(engine, ByteTokenizer(), MODEL, CONFIG) as running:
        yield running
        engine.check()
    engine.close()
    engine.check()


@pytest.fixture
def server() -> Iterator[Running]:
    with echoing() as running:
        yield running


@pytest.fixture(scope="module")
def shared() -> Iterator[Running]:
    """One server for all the tests of a module: for those that leave it as it was."""
    with echoing() as running:
        yield running


@pytest.fixture
def engine(server: Running) -> EchoEngine:
    made: EchoEngine = server.engine
    return made


@pytest.fixture
def client(server: Running) -> Iterator[openai.OpenAI]:
    with server.client() as made:
        yield made
