"""`pagoda` over the echo engine, as a process: echo_pagoda.py [--step-s S] ARGUMENTS; SIGUSR1 kills the engine."""

from __future__ import annotations

import signal
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import pagoda.llm
from pagoda.cli import main
from pagoda.engine import Engine
from pagoda.obs.observer import NoObserver
from server.fakes import ByteTokenizer, EchoEngine, EchoRunner

_NOBODY = NoObserver()


def option(name: str) -> float:
    """The value of one of this script's own options, taken out of the arguments; 0 if it is not there."""
    if name not in sys.argv:
        return 0.0
    at = sys.argv.index(name)
    value = sys.argv.pop(at + 1)
    sys.argv.pop(at)
    return float(value)


def open_echo(step_s: float = 0.0, killable: bool = False) -> Any:
    def open_engine(config: Any, observer: Any = _NOBODY, *_: Any, **__: Any) -> pagoda.llm.Opened:
        if config.model.model == "slow-to-load":
            print("loading", file=sys.stderr, flush=True)
            time.sleep(60)
        runner: Any = SimpleNamespace(close=lambda: None)
        engine: Any = EchoEngine(step_s=step_s)
        if config.model.model == "real-engine":
            runner = EchoRunner()
            runner.step_s = step_s
            engine = Engine(runner, ByteTokenizer(), config.scheduler, observer)  # type: ignore[arg-type]
        engine.start()
        if killable:
            signal.signal(signal.SIGUSR1, lambda *_: threading.Thread(target=engine.kill).start())
        return pagoda.llm.Opened(engine, ByteTokenizer(), "echo", runner)  # type: ignore[arg-type]

    return open_engine


if __name__ == "__main__":
    pagoda.llm.open_engine = open_echo(option("--step-s"), killable=True)
    main()
