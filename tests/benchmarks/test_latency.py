"""The benchmark of promised latency runs, in small, and says what it is to say."""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from pathlib import Path
from types import ModuleType

import pytest

from pagoda.bench.workloads import Shape
from tiny import tiny_model

SOURCE = Path(__file__).parents[2] / "benchmarks" / "latency.py"


@pytest.fixture
def latency(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    spec = importlib.util.spec_from_file_location("latency", SOURCE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.BEFORE_S = 0.0  # type: ignore[attr-defined]
    module.SHAPE, module.CHATS, module.CHAT_TOKENS, module.LONG_TOKENS = Shape((4, 12), (4, 8)), 3, 100, 40  # type: ignore[attr-defined]
    return module


def test_it_runs(
    latency: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    model = tiny_model(tmp_path, vocabulary=512, context=512)
    monkeypatch.setattr("sys.argv", ["latency.py", "--model", str(model), "--seconds", "2"])
    latency.main()
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert set(found) == {"chats", "overload", "keys", "promises"}
    assert len(found["promises"]) == 9
    assert all(row["value"] is not None for row in found["promises"].values()), found["promises"]
    chats, overload, keys = found["chats"], found["overload"], found["keys"]
    for name in ("default", "tpot_target", "chunk_4096"):
        assert chats[name]["itl_ratio"] > 0
    assert overload["once"]["served"] > 0
    assert 0 < overload["kept"] <= 1
    assert overload["prediction_error"] is not None
    assert keys["alone"]["ttft_ms"]["p99"] > 0
    assert keys["ttft_ratio"] > 0
