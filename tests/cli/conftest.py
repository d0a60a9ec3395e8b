"""The command line in this process and in processes of its own, over the echo engine."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import pagoda.llm
from cli.echo_pagoda import open_echo

SCRIPT = Path(__file__).parent / "echo_pagoda.py"


@pytest.fixture
def echo(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pagoda.llm, "open_engine", open_echo())


@pytest.fixture
def invoke(echo: None) -> Callable[..., Any]:
    from pagoda.cli._app import app

    def run(*arguments: str, **options: Any) -> Any:
        return CliRunner().invoke(app, arguments, prog_name="pagoda", **options)

    return run


@pytest.fixture
def spawn() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts `pagoda` processes over the echo engine; what is left of them is ended."""
    started: list[subprocess.Popen[str]] = []

    def start(*arguments: str, **options: Any) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, str(SCRIPT), *arguments],
            text=True,
            **({"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | options),
        )
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
        process.communicate()
