"""Fixtures for tests of pulling: a package index of our own, and none of this machine's settings."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from index_server import IndexServer, serving
from toy import TOY, WHEELS

from pagoda.catalog import download, index
from pagoda.catalog.builtin import BUILTINS


@pytest.fixture
def surroundings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No settings of this machine, an empty cache, and no long waits."""
    for name in list(os.environ):
        if name.startswith(("PIP_", "UV_", "XDG_")) or name.lower().endswith("_proxy") or name == "REQUESTS_CA_BUNDLE":
            monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PAGODA_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(download, "PAUSE_S", 0.01)
    monkeypatch.setitem(BUILTINS, "toy", TOY)
    monkeypatch.setattr(index, "pip_command", lambda: None)  # starting it costs most of a second


PIP_COMMAND = index.pip_command


@pytest.fixture
def with_pip(monkeypatch: pytest.MonkeyPatch, surroundings: None) -> None:
    """This Python's pip, as users have it."""
    monkeypatch.setattr(index, "pip_command", PIP_COMMAND)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, surroundings: None) -> Iterator[IndexServer]:
    with serving(dict(WHEELS)) as running:
        monkeypatch.setenv("PIP_INDEX_URL", f"{running.url}/simple")
        yield running
