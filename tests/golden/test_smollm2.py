"""The default model's logits against an independent implementation, in three arithmetics (make_smollm2.py's bounds)."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

import numpy as np
import pytest
from golden_logits import Golden
from measure_smollm2 import (
    ARITHMETICS,
    GOLDEN,
    KV_INTEGERS,
    Figures,
    KVFigures,
    Net,
    kv_line,
    line,
    measure,
    measure_kv,
)

pytestmark = pytest.mark.model
Open = Callable[[str, str], Net]
Measured = Callable[[str, str], Figures]


@pytest.fixture(scope="module")
def golden(smollm2_path: Path) -> Golden:
    """Of the very file that is tested."""
    found = Golden(GOLDEN)
    assert found.sha256.startswith(smollm2_path.stem.rsplit("-", 1)[-1])
    return found


@pytest.fixture(scope="module")
def opened(smollm2_path: Path) -> Open:
    return lru_cache(maxsize=None)(lambda activations, kv_format: Net(smollm2_path, activations, kv_format))


@pytest.fixture(scope="module")
def measured(golden: Golden, opened: Open) -> Measured:
    def measure_and_say(activations: str, kv_format: str) -> Figures:
        found = measure(golden, opened(activations, kv_format))
        print(line(activations, kv_format, found))
        return found

    return lru_cache(maxsize=None)(measure_and_say)


def test_f32_is_the_reference(measured: Measured) -> None:
    found = measured("f32", "f32")
    assert found.positions >= 200
    assert found.difference < 2e-3
    assert found.clear_disagreements == 0


def test_the_default_is_close(measured: Measured) -> None:
    found = measured("int16", "f16")
    assert found.kl < 2e-3
    assert found.agreement >= 0.98


def test_int8_costs_what_is_known(measured: Measured) -> None:
    """KL 6.6e-3 and 95 %, as llama.cpp (6.4e-3, 96 %) and the NumPy reference in int8 (6.5e-3, 96.5 %): one scale for
    32 numbers leaves 8 bits too few for this model's outliers. Every rounding moves a few near-ties, hence the margin.
    This is why int16, which loses a thousandth of it, is the default, and int8 something one asks for.
    """
    found = measured("int8", "f16")
    assert found.kl < 1e-2
    assert found.agreement >= 0.94
    assert measured("int16", "f16").kl < found.kl / 100


@pytest.fixture(scope="module")
def measured_kv(golden: Golden, opened: Open) -> dict[str, KVFigures]:
    found = {f: measure_kv(golden, opened("int16", f), opened("int16", "f16")) for f in KV_INTEGERS}
    for kv_format, figures in found.items():
        print(kv_line(kv_format, figures))
    return found


def test_int8_kv_costs_next_to_nothing(measured_kv: dict[str, KVFigures]) -> None:
    assert measured_kv["int8"].kl < 1e-3
    assert measured_kv["int8"].agreement >= 0.98


def test_int4_kv_costs_what_is_known(measured_kv: dict[str, KVFigures]) -> None:
    """0.08 to 0.1: this model has three key heads of 64, whose keys four bits are too few for."""
    assert measured_kv["int8"].kl < measured_kv["int4"].kl < 0.15


@pytest.mark.parametrize("kv_format", KV_INTEGERS)
def test_chunks_change_no_bit_of_integer_kv(golden: Golden, opened: Open, kv_format: str) -> None:
    net = opened("int16", kv_format)
    for _, _, ids in golden.sequences():
        whole, parts = net.logits(ids, [len(ids)]), net.logits(ids, [1, 2, 13, 1, 16, 9, 40])
        np.testing.assert_array_equal(parts.view(np.int32), whole.view(np.int32))


@pytest.mark.parametrize(("activations", "kv_format"), ARITHMETICS)
def test_chunks_change_no_bit(golden: Golden, opened: Open, activations: str, kv_format: str) -> None:
    """All sequences; in the slow arithmetic the last one, which is the shortest."""
    net, sequences = opened(activations, kv_format), list(golden.sequences())
    for _, _, ids in sequences[-1:] if activations == "f32" else sequences:
        whole, parts = net.logits(ids, [len(ids)]), net.logits(ids, [1, 2, 13, 1, 16, 9, 40])
        np.testing.assert_array_equal(parts.view(np.int32), whole.view(np.int32))
