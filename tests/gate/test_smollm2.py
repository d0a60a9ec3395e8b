"""The gate on the default model, a small part of its work: int8 passes, int8 with scales off by a tenth does not."""

from __future__ import annotations

from pathlib import Path

import pytest

from pagoda.catalog import open_model
from pagoda.gate.bench import Bench, Wanted

from .worlds import damage


@pytest.mark.model
def test_the_shipped_int8_passes_and_a_damaged_one_is_caught(smollm2_path: Path) -> None:
    name = str(smollm2_path)
    with open_model(name) as file:
        bench = Bench(name, file, (name, file), Wanted(lengths=(512,), quick=True))
        sound = bench.subject(None, "int8")
        reference, (whole, damaged) = bench.judge([sound, damage(sound, 1.1)])
    assert whole.passed
    assert whole["divergence"].value < 5e-4
    assert [f.measure for f in damaged.findings if not f.passed] == ["divergence", "agreement", "perplexity"]
    assert damaged["divergence"].value > 100 * whole["divergence"].value
    assert 10 < reference[0].perplexity < 60
    assert 0 < reference[0].needles <= reference[0].of_needles
    assert 12 < whole["answers"].reference < 24, "the questions are neither too easy nor too hard"
