"""Scales and integers chosen apart: every bit in its place, by the independent `gguf` package, and worth choosing."""

from __future__ import annotations

import numpy as np
import pytest
from gguf import GGMLQuantizationType
from gguf.quants import dequantize

from pagoda import quant
from pagoda.backends.ops import Floats

FORMATS = ("q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "q4_k", "q5_k", "q6_k")


def stored(name: str) -> quant.GridQuantizer:
    found = quant.by_name(name)
    assert isinstance(found, quant.GridQuantizer)
    return found


def noise(name: str, blocks: int, seed: int) -> Floats:
    rng = np.random.default_rng(seed)
    floats = rng.standard_t(4, (blocks, stored(name).block)).astype(np.float32)
    floats[0], floats[1], floats[2] = 0, 3, -2
    floats[3] *= 1e-9
    return floats


def test_every_format_of_scales_and_integers_is_here() -> None:
    assert {n for n in quant.names() if isinstance(quant.by_name(n), quant.GridQuantizer)} == set(FORMATS)


@pytest.mark.parametrize("name", FORMATS)
def test_integers_of_every_value_come_back(name: str) -> None:
    form = stored(name)
    grid = form.grid(noise(name, 64, 1))
    integers = np.random.default_rng(2).integers(grid.low, grid.high + 1, (64, form.block)).astype(np.int8)
    assert {grid.low, grid.high} <= set(np.unique(integers).tolist())
    raw = form.pack(grid, integers)
    theirs = dequantize(raw, GGMLQuantizationType(quant.type_id(name))).reshape(integers.shape)
    np.testing.assert_array_equal(theirs, form.dequantize(raw))
    np.testing.assert_allclose(theirs, grid.numbers(integers), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("name", FORMATS)
def test_nearest_is_nearest(name: str) -> None:
    form, floats = stored(name), noise(name, 32, 3)
    grid = form.grid(floats)
    chosen = grid.nearest(floats)
    error = np.abs(grid.numbers(chosen) - floats)
    for step in (-1, 1):
        other = np.clip(chosen.astype(np.int16) + step, grid.low, grid.high).astype(np.int8)
        assert (error <= np.abs(grid.numbers(other) - floats) + 1e-6).all()


@pytest.mark.parametrize("name", FORMATS)
def test_scales_of_least_error(name: str) -> None:
    """No worse than ggml's, and better where errors in some columns are said to count."""
    form, floats = stored(name), noise(name, 400, 4)
    grid = form.grid(floats)
    plain = form.dequantize(form.quantize(floats))
    fitted = grid.numbers(grid.nearest(floats))
    assert ((fitted - floats) ** 2).sum() <= 1.0001 * ((plain - floats) ** 2).sum()
    if name == "q8_0":  # is fine as it is
        return
    weights = np.broadcast_to(np.where(np.arange(form.block) % 8 == 0, 50, 1).astype(np.float32), floats.shape)
    grid = form.grid(floats, weights)
    weighed = grid.numbers(grid.nearest(floats))
    assert (weights * (weighed - floats) ** 2).sum() < 0.9 * (weights * (fitted - floats) ** 2).sum()


@pytest.mark.parametrize("name", ["q4_k", "q5_k", "q6_k"])
def test_more_bits_err_less(name: str) -> None:
    """By the package's reading of what is written."""
    bits = {"q4_k": 4, "q5_k": 5, "q6_k": 6}[name]
    floats = np.random.default_rng(5).standard_normal((300, 256)).astype(np.float32)
    back = dequantize(quant.quantizer(name).quantize(floats), GGMLQuantizationType(quant.type_id(name)))
    assert np.sqrt(np.mean((back.reshape(floats.shape) - floats) ** 2)) < 1.25 / 2**bits


@pytest.mark.parametrize(
    ("name", "shape", "wanted", "becomes"),
    [
        ("blk.0.attn_q.weight", (64, 256), "q4_k", "q4_k"),
        ("blk.0.attn_q.weight", (64, 96), "q4_k", "q8_0"),
        ("blk.0.attn_q.weight", (64, 40), "q4_k", None),
        ("output.weight", (64, 256), "q4_k", "q8_0"),
        ("blk.0.attn_norm.weight", (256,), "q4_0", None),
        ("blk.0.ffn_gate_inp.weight", (8, 256), "q4_0", None),
        ("blk.0.ffn_gate_exps.bias", (8, 256), "q4_0", None),
        ("blk.0.ffn_gate_exps.weight", (8, 64, 256), "q4_0", "q4_0"),
    ],
)
def test_what_becomes_of_a_tensor(name: str, shape: tuple[int, ...], wanted: str, becomes: str | None) -> None:
    chosen = quant.choose(name, shape, wanted)
    assert (chosen.name if chosen else None) == becomes
