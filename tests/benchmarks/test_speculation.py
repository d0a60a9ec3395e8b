"""The benchmark of speculation runs, in small, in each of its modes: it stands in for the engine's own controller."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tiny import tiny_model

SOURCE = Path(__file__).parents[2] / "benchmarks" / "speculation.py"
SMALL = ("--tasks", "editing", "--rounds", "1", "--tokens", "24", "--temperatures", "0")
CASES = {
    "tasks": (*SMALL, "--batches", "2", "--depths", "0,2"),
    "toggle": ("--batches", "2", "--temperatures", "0.8", "--seconds", "0.5", "--tokens", "300"),
    "depths": (*SMALL, "--batches", "1", "--depths", "1", "--speculate", "self:1"),
}


@pytest.mark.parametrize("mode", CASES)
def test_it_runs(mode: str, tmp_path: Path) -> None:
    model = tiny_model(tmp_path, vocabulary=512, context=4096)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, str(SOURCE), mode, str(model), *CASES[mode]]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["mode"] == mode
    assert found["results"]
