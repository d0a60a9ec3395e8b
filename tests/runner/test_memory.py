"""Peak memory of loading: a process of its own loads a model of a usual size and says what the kernel counted."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import make_model

MODEL = make_model.Shape(layers=22, width=1024, heads=16, kv_heads=4, ffn=4096, vocab=8192, context=1024)
RATIO = 1.4
"""Of the peak to the file, everything counted: the interpreter with all its modules, tokenizer, header, weights."""
BEYOND = 1.2
"""Likewise, without what the interpreter and the modules take before anything is loaded."""
PAGES = 2**20
"""Bytes of KV."""

LOAD = """
import json, sys
from pathlib import Path
from pagoda.llm import engine_config, open_engine

def peak():  # not getrusage: that counts the parent from which this process was forked
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))

before = peak()
opened = open_engine(engine_config(sys.argv[1], kv_memory=int(sys.argv[2]), threads=2))
print(json.dumps({"before": before, "peak": peak(), "weights": opened.sizing.weight_bytes}))
opened.close()
"""


@pytest.mark.parametrize("mix", ["q4_0", "q4_k_m"])
def test_the_peak_while_loading(tmp_path: Path, mix: str) -> None:
    path = tmp_path / "model.gguf"
    size = make_model.make(path, MODEL, mix, 0, "memory")["bytes"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "PAGODA_CACHE": str(tmp_path / "cache")}
    command = [sys.executable, "-c", LOAD, str(path), str(PAGES)]
    found = json.loads(subprocess.run(command, check=True, timeout=100, env=environment, capture_output=True).stdout)
    assert size > 120 * 2**20
    assert found["peak"] >= found["weights"] > 0.95 * size, "everything was loaded"
    assert found["peak"] < RATIO * size
    assert found["peak"] - found["before"] < BEYOND * size
