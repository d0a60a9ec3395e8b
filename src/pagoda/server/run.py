"""The process around the application: the socket, the ready line, signals, and what the exit code says.

Knows uvicorn and the engine's health; knows nothing of routes.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING

import uvicorn

from pagoda.config import ServerConfig
from pagoda.errors import InvalidConfig, PagodaError

if TYPE_CHECKING:
    from starlette.applications import Starlette

    from pagoda.engine.engine import Engine

WATCH_S = 0.25
"""How often the engine's health is looked at."""
_DRAIN_S = ServerConfig().drain_timeout
logger = logging.getLogger("pagoda.server")


def bind(config: ServerConfig) -> socket.socket:
    """Take the address, without listening yet: a port that is in use is known before a model is loaded.

    Raises:
        InvalidConfig: the address cannot be had.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            config.host, config.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        sock = socket.socket(family, kind, protocol)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
    except OSError as error:
        where = f"{config.host}:{config.port}"
        raise InvalidConfig(f"cannot listen on {where}: {error.strerror}; --port 0 takes a free port") from None
    return sock


def url_of(sock: socket.socket) -> str:
    """Where a client on this machine reaches the socket."""
    host, port = sock.getsockname()[:2]
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class _HttpServer(uvicorn.Server):
    """uvicorn, but for signals: its own would end the process by the signal, not with exit 0."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.listens = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.listens.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield


class Process:
    """Serves until a signal or the engine's death.

    The first SIGINT or SIGTERM stops accepting, lets answers under way go on for `drain_s` seconds, ends those that are
    left, and exits 0. A second SIGINT exits at once.

    Args:
        app: the application.
        engine: the one it serves; it is closed at the end.
        sock: a bound socket.
        prepare: what is to be done, on a thread, before the server is ready; meanwhile it listens, for probes.
        drain_s: seconds for answers under way.
        reload: what SIGHUP does, if anything.
    """

    def __init__(
        self,
        app: Starlette,
        engine: Engine,
        sock: socket.socket,
        prepare: Callable[[], None] | None = None,
        drain_s: float = _DRAIN_S,
        reload: Callable[[], None] | None = None,
    ) -> None:
        options = uvicorn.Config(
            app,
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=round(drain_s) + 5,
        )
        self._http, self._engine, self._sock, self._drain_s = _HttpServer(options), engine, sock, drain_s
        self._app, self._prepare, self._reload = app, prepare, reload
        if prepare is not None:
            app.state.readiness.waits_for = "prompts are computed ahead"
        self._closing: asyncio.Future[None] | None = None
        self._failure = ""

    def run(self) -> int:
        """Serve; the exit code: 0 after a signal, 1 after the engine died or could not be made ready."""
        with asyncio.Runner(loop_factory=self._http.config.get_loop_factory()) as runner:
            runner.run(self._serve())
        if not self._failure:
            return 0
        print(f"pagoda: {self._failure}", file=sys.stderr, flush=True)
        return 1

    async def _serve(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._signalled, number)
        if self._reload is not None:
            loop.add_signal_handler(signal.SIGHUP, self._reload)
        beside = [asyncio.ensure_future(work) for work in (self._watch(), self._get_ready())]
        try:
            await self._http.serve([self._sock])
        finally:
            for work in beside:
                work.cancel()
        if self._closing is not None:
            await self._closing

    async def _get_ready(self) -> None:
        """Once it listens: prepare, then say on standard output that it is ready."""
        await self._http.listens.wait()
        try:
            if self._prepare is not None:
                await asyncio.to_thread(self._prepare)
        except Exception as error:
            if not self._http.should_exit:  # else it was stopped, or the engine died
                if not isinstance(error, PagodaError):
                    logger.exception("the server could not be made ready")
                self._fail(str(error))
            return
        if not self._http.should_exit:
            self._app.state.readiness.waits_for = ""
            with contextlib.suppress(BrokenPipeError):
                print(f"ready {url_of(self._sock)}", flush=True)

    def _fail(self, why: str) -> None:
        self._failure = self._failure or why
        self._http.should_exit = True

    def _signalled(self, number: int) -> None:
        if self._http.should_exit:
            if number == signal.SIGINT:
                os._exit(128 + number)
            return
        logger.info("stopping: no new requests, at most %.0f s for those under way", self._drain_s)
        self._http.should_exit = True
        loop = asyncio.get_running_loop()
        self._closing = loop.run_in_executor(None, lambda: self._engine.close(drain_s=self._drain_s))

    async def _watch(self) -> None:
        while not self._http.should_exit:
            health = self._engine.health()
            if not health.alive:
                self._fail(f"the engine died: {health.reason}")
            await asyncio.sleep(WATCH_S)


def run(
    app: Starlette,
    engine: Engine,
    sock: socket.socket,
    prepare: Callable[[], None] | None = None,
    drain_s: float = _DRAIN_S,
    reload: Callable[[], None] | None = None,
) -> int:
    """Serve `app` on `sock` until a signal or the engine's death; the exit code. The rest is as in `Process`.

    A dead engine's threads may never end, so after its death this does not return: it ends the process with 1.
    """
    code = Process(app, engine, sock, prepare, drain_s, reload).run()
    if code:
        sys.stdout.flush()
        os._exit(code)
    return code
