"""The made-up traces are traces: seeded, read, and played."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType

import pytest
from typer.testing import CliRunner

from pagoda.bench.workloads import read_trace
from pagoda.cli._app import app

SOURCE = Path(__file__).parents[2] / "benchmarks" / "make_trace.py"


@pytest.fixture(scope="module")
def make_trace() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_trace", SOURCE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", ["trace.jsonl", "trace.csv"])
def test_a_made_up_trace(make_trace: ModuleType, tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    made = list(make_trace.lines(name, 60, 2.0, 200.0, 10.0, 3))
    assert (
        made
        == list(make_trace.lines(name, 60, 2.0, 200.0, 10.0, 3))
        != list(make_trace.lines(name, 60, 2.0, 200.0, 10.0, 4))
    )
    path.write_text("\n".join(made))
    asks = read_trace(path)
    assert len(asks) == 60
    assert 10 < asks[-1].at < 90
    assert 100 < sorted(ask.tokens for ask in asks)[30] < 400
    firsts = [ask.prompt[0][0] for ask in asks]
    assert (len(set(firsts)) < 60) == (name == "trace.jsonl"), "some begin alike"
    result = CliRunner().invoke(app, ["bench", "simulate", str(path), "--ttft-target", "3000", "--limit", "40"])
    assert result.exit_code == 0, result.output
    figures = json.loads(result.stdout.splitlines()[-1])
    assert figures["requests"] == 40 == figures["served"] + figures["refused"]
    assert figures["kept"] > 0.9
