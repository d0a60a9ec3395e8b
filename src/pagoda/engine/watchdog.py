"""`Watchdog`: notices, from a thread of its own, that steps have stopped coming although there is work."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from pagoda.engine.open_requests import OpenRequests


class Watchdog:
    """Sleeps while nothing is open; else it wakes about once in `stall_s` seconds, and reports a stall once."""

    def __init__(self, requests: OpenRequests, stall_s: float, on_stall: Callable[[str], None]) -> None:
        self._requests = requests
        self._stall_s = stall_s
        self._on_stall = on_stall
        self._beat = 0.0
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="pagoda-watchdog", daemon=True)

    def start(self) -> None:
        """Begin to watch."""
        self._thread.start()

    def stop(self) -> None:
        """Watch no more; the requests are `over`."""
        self._stopped.set()

    def join(self) -> None:
        """Wait for its thread: one that outlives the engine keeps all of it alive."""
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join()

    def beat(self) -> None:
        """A step was finished."""
        self._beat = time.monotonic()

    def _watch(self) -> None:
        while self._requests.wait_for_work():
            left = max(self._beat, self._requests.busy_since) + self._stall_s - time.monotonic()
            if left <= 0:
                self._on_stall(f"no step was finished for {self._stall_s:g} s although requests are open")
                return
            if self._stopped.wait(left):
                return
