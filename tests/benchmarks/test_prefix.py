"""The benchmark of shared prompts runs, and what it counts (not what it times) is what the cache promises."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import prefix

from tiny import tiny_model


def test_what_is_counted(tmp_path: Path) -> None:
    model = str(tiny_model(tmp_path, seed=3))
    args = prefix.parsed(["--model", model, "--users", "4", "--shared", "100", "--output", "3", "--answer", "2"])
    args.kv_memory = 2**20
    figures = prefix.measure(args)
    own = prefix.OWN
    assert figures["hit_rate_cold"] >= 3 * 100 / (4 * (100 + own)) - 0.01
    assert figures["hit_rate_warm"] == pytest.approx((99 + own) / (100 + own), abs=0.001)
    assert figures["n8_pages_over_bound"] <= 1
    assert all(value > 0 for value in figures.values())
