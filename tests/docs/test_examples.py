"""The examples of README and docs run as they stand: on a tiny model, and on the default one."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pagoda.config import ServerConfig
from pagoda.llm import engine_config, open_engine
from server.conftest import Running, serving
from tiny import tiny_model

from .pages import PAGES, blocks

PYTHON = [pytest.param(b, id=f"{p.name}-{i}") for p in PAGES for i, b in enumerate(blocks(p.read_text(), "python"))]
CURL = [
    pytest.param(command, id=f"{page.name}-{index}")
    for page in PAGES
    for index, command in enumerate(re.split(r"^(?=curl )", "".join(blocks(page.read_text(), "sh")), flags=re.M))
    if command.startswith("curl ")
]
ADDRESS = "http://127.0.0.1:8000"


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tiny_model(tmp_path_factory.mktemp("examples"), vocabulary=512, seed=2))


@pytest.fixture(scope="module")
def server(tiny: str) -> Iterator[Running]:
    """The tiny model, under the default model's name."""
    yield from _serve(tiny)


def _serve(model: str) -> Iterator[Running]:
    opened = open_engine(engine_config(model, threads=2))
    with serving(opened.engine, opened.tokenizer, "smollm2", ServerConfig(port=0)) as running:
        yield running
    opened.close()


def run(code: str, model: str, url: Callable[[], str]) -> None:
    if ADDRESS in code:
        code = code.replace(ADDRESS, url())
    exec(compile(code.replace('LLM("smollm2"', f"LLM({model!r}"), "README", "exec"), {"__name__": "__main__"})


@pytest.mark.parametrize("code", PYTHON)
def test_python_on_a_tiny_model(code: str, tiny: str, server: Running, capsys: pytest.CaptureFixture[str]) -> None:
    run(code, tiny, lambda: server.url)
    assert capsys.readouterr().out


@pytest.mark.model
@pytest.mark.parametrize("code", PYTHON)
def test_python_on_the_default_model(
    code: str, smollm2_path: Path, served: Running, capsys: pytest.CaptureFixture[str]
) -> None:
    run(code, str(smollm2_path), lambda: served.url)
    assert len(capsys.readouterr().out) > 20


@pytest.fixture(scope="module")
def served(smollm2_path: Path) -> Iterator[Running]:
    yield from _serve(str(smollm2_path))


@pytest.mark.parametrize("command", CURL)
def test_curl(command: str, server: Running) -> None:
    path = re.search(rf"{ADDRESS}(\S+)", command)
    assert path is not None
    body = re.search(r"-d '(.*)'", command, re.S)
    sent: Any = json.loads(body[1]) if body else None
    answer = server.http.ask("POST" if body else "GET", path[1], sent)
    assert answer.status in (200, 201)


def test_there_are_examples() -> None:
    assert len(PYTHON) >= 3
    assert len(CURL) >= 3
