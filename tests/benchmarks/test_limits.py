"""What a mixture's steps read and multiply, by hand from its shape."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from pagoda.bench.plan import plan_model
from pagoda.llm import engine_config

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import limits
import make_model

SHAPE = make_model.SHAPES["tiny-moe"]
EXPERT = 2 * 3 * 256 * 256
"""Weights of one expert, both layers."""
OTHERS = 2 * (4 * 256 * 256 + 8 * 256)
"""Attention and router."""
HEAD = 1280 * 256
Q4_0, Q8_0 = 18 / 32, 34 / 32


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("limits") / "tiny-moe.gguf"
    make_model.make(path, SHAPE, "q4_0", 0, "tiny-moe")
    return path


def test_work_counts_active_experts(model: Path) -> None:
    work = limits.Work(str(model))
    shared = 2 * 4 * 256 * 256 * Q4_0 + 2 * 16 * 256 * 4 + HEAD * Q8_0  # the router fills half of a tile of 16
    one, kv = EXPERT * Q4_0, 2 * 2 * 4 * 64 * 2
    for rows, active in ((1, 2), (2, 8 * (1 - 0.75**2)), (8, 8 * (1 - 0.75**8))):
        wanted = shared + rows * 256 * Q8_0 + active * one + rows * 100 * kv
        assert work.decode_bytes(100, rows) == pytest.approx(wanted, rel=0.01)
    assert work.prefill_operations(10) == 2 * ((2 * EXPERT + OTHERS) * 10 + HEAD + 2 * 2 * 4 * 64 * 55)
    assert work.decode_operations(9, 3) == 2 * 3 * (2 * EXPERT + OTHERS + HEAD + 2 * 2 * 4 * 64 * 10)


def test_a_plan_tells_them(model: Path) -> None:
    plan = plan_model(engine_config(str(model)), memory=2**30)
    reads, told = plan.sizing.reads, plan.as_dict()
    assert reads.experts == pytest.approx(8 * EXPERT * Q4_0, rel=0.01)
    assert told["expert_bytes"] == reads.experts
    assert told["active_experts"][0]["1"] == 2
    assert told["step_weight_bytes"]["8"] == reads.step(8) > reads.step(1)
    lines = "\n".join(plan.lines())
    assert "experts    2 of 8 for each token and layer; all of them are 1.8 MB, one is 0.2 MB" in lines
    assert "+ 2.0 x 0.2 MB of experts" in lines


def test_of_several_sequences_the_nearer_bound_counts(model: Path) -> None:
    work, machine = limits.Work(str(model)), limits.Limits(1)
    for read, gop, unit in ((10.0, 1e6, "GB/s"), (1e6, 10.0, "Gop/s")):
        machine.read_gb_s, machine.int8_gop_s = read, gop
        share = machine.share(work, "decode16b4", 0.001)
        assert share is not None
        assert share["unit"] == unit
        by_bytes = work.decode_bytes(16, 4) / 0.004 / 1e9
        by_operations = work.decode_operations(16, 4) / 0.004 / 1e9
        assert share["does"] == pytest.approx(by_bytes if unit == "GB/s" else by_operations)
