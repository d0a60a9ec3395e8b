"""Every weight format against the independent `gguf` package, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest
from gguf import GGMLQuantizationType
from gguf.constants import GGML_QUANT_SIZES
from gguf.quants import dequantize, quantize

from pagoda import quant
from pagoda.backends.ops import Bytes, Floats, StoredTensor
from pagoda.errors import UnsupportedModel
from pagoda.quant.blocks import six_bit_bytes, six_bit_pairs

READ = quant.ggml_names()
WRITTEN = ("f32", "f16", "bf16", "q4_0", "q4_1", "q5_0", "q5_1", "q8_0")


def theirs(name: str) -> GGMLQuantizationType:
    return GGMLQuantizationType(quant.type_id(name))


def random_blocks(name: str, blocks: int, seed: int) -> Bytes:
    """Bytes of every kind: all patterns of integers, scales that are subnormal, infinite and NaN among them."""
    rng = np.random.default_rng(seed)
    return rng.integers(0, 256, (blocks, quant.by_name(name).block_bytes), dtype=np.uint8)


def awkward(rows: int, width: int) -> Floats:
    """Rows of zeros, of one value, of tiny and huge numbers, of ties in magnitude and halves, and plain noise."""
    rng = np.random.default_rng(7)
    floats = rng.standard_normal((rows, width)).astype(np.float32)
    floats[0] = 0
    floats[1] = -0.0
    floats[2] = 1.5
    floats[3] = -3
    floats[4] *= 1e-9
    floats[5] *= 1e4
    floats[6, 0::2], floats[6, 1::2] = 4, -4
    floats[7] = np.arange(width) - width / 2
    floats[8] = (np.arange(width) - width / 2) * np.float32(127 / 2 / width)
    floats[9] = 0
    floats[9, width // 2] = -1e-3
    return floats


def bits(floats: Floats) -> np.ndarray:
    """The bits, with every NaN made the same."""
    return np.where(np.isnan(floats), np.float32("nan"), floats).view(np.uint32)


@pytest.mark.parametrize("name", READ)
def test_reads_as_the_gguf_package_does(name: str) -> None:
    raw = random_blocks(name, 999, 1)
    stored = quant.by_name(name)
    with np.errstate(all="ignore"):
        expected = dequantize(raw.reshape(1, -1) if stored.block == 1 else raw, theirs(name))
    ours = stored.dequantize(raw)
    assert ours.shape == (999, stored.block)
    assert ours.dtype == np.float32
    np.testing.assert_array_equal(bits(ours), bits(expected.reshape(ours.shape)))


@pytest.mark.parametrize("name", WRITTEN)
def test_writes_as_the_gguf_package_does(name: str) -> None:
    floats = awkward(512, 256)
    stored = quant.quantizer(name)
    with np.errstate(all="ignore"):
        expected = np.ascontiguousarray(quantize(floats, theirs(name))).view(np.uint8)
    raw = stored.quantize(floats.reshape(-1, stored.block))
    assert raw.shape[1] == stored.block_bytes
    assert raw.tobytes() == expected.tobytes()


@pytest.mark.parametrize("name", ["q4_0", "q4_1", "q5_0", "q5_1", "q8_0"])
def test_numbers_too_small_to_scale_become_zero(name: str) -> None:
    floats = np.linspace(-1e-39, 1e-39, 32, dtype=np.float32).reshape(1, 32)
    stored = quant.quantizer(name)
    assert not stored.dequantize(stored.quantize(floats)).any()


@pytest.mark.parametrize("name", ["q4_0", "q4_1", "q8_0"])
def test_quantisation_errs_by_at_most_half_a_step(name: str) -> None:
    stored = quant.quantizer(name)
    floats = np.random.default_rng(3).uniform(-1, 1, (500, 32)).astype(np.float32)
    back = stored.dequantize(stored.quantize(floats))
    span = {"q4_0": 2 * np.abs(floats).max(1) / 16, "q4_1": np.ptp(floats, axis=1) / 15, "q8_0": 2 / 254}[name]
    # q4_0 has no +8: a number near the opposite end of the largest may be a whole step off; f16 scales add a little
    steps = 1.0 if name == "q4_0" else 0.5
    assert (np.abs(back - floats).max(1) <= span * steps + 16 * 2.0**-11 * 2 / 15).all()


@pytest.mark.parametrize("name", READ)
def test_sizes(name: str) -> None:
    stored = quant.by_name(name)
    assert (stored.block, stored.block_bytes) == GGML_QUANT_SIZES[theirs(name)]
    assert theirs(name).name.lower() == stored.name == name
    assert quant.by_id(quant.type_id(name)) is stored


@pytest.mark.parametrize("name", READ)
def test_no_blocks_give_no_numbers(name: str) -> None:
    stored = quant.by_name(name)
    assert stored.dequantize(np.empty((0, stored.block_bytes), np.uint8)).shape == (0, stored.block)


def test_bfloat16_rounds_to_even_and_keeps_nan() -> None:
    patterns = np.array([0x3F808000, 0x3F818000, 0x3F808001, 0x7F800001, 0xFF800000, 0x7F7FFFFF, 0x80000000], np.uint32)
    raw = quant.quantizer("bf16").quantize(patterns.view(np.float32).reshape(-1, 1))
    assert raw.view("<u2").ravel().tolist() == [0x3F80, 0x3F82, 0x3F81, 0x7FC0, 0xFF80, 0x7F80, 0x8000]


@pytest.mark.parametrize("name", [n for n in READ if isinstance(quant.by_name(n), quant.GridQuantizer)])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_block_formats_refuse_what_they_cannot_hold(name: str, bad: float) -> None:
    stored = quant.quantizer(name)
    floats = np.zeros((1, stored.block), np.float32)
    floats[0, 5] = bad
    with pytest.raises(ValueError, match="NaN or infinite"):
        stored.quantize(floats)
    assert isinstance(stored, quant.GridQuantizer)
    with pytest.raises(ValueError, match="NaN or infinite"):
        stored.grid(floats)


def test_a_stored_tensor_has_its_shape() -> None:
    stored = quant.quantizer("q8_0")
    floats = np.random.default_rng(0).standard_normal((6, 64)).astype(np.float32)
    raw = stored.quantize(floats.reshape(-1, 32))
    tensor = StoredTensor("w", (6, 64), stored, raw.reshape(-1))
    np.testing.assert_allclose(tensor.floats(), floats, atol=0.02)


def test_the_bytes_may_be_read_only() -> None:
    for name in READ:
        raw = random_blocks(name, 3, 2)
        raw.flags.writeable = False
        quant.by_name(name).dequantize(raw)


def test_unknown_formats_are_named() -> None:
    with pytest.raises(UnsupportedModel, match=r"iq2_xxs \(ggml type 16\) cannot be read; these can: f32, "):
        quant.by_id(16)
    with pytest.raises(UnsupportedModel, match=r"unknown \(ggml type 4000000000\)"):
        quant.by_id(4_000_000_000)
    with pytest.raises(UnsupportedModel, match="'iq3_s' cannot be read"):
        quant.by_name("iq3_s")
    with pytest.raises(UnsupportedModel, match="'q3_k' can be read but not written"):
        quant.quantizer("q3_k")


def test_q4_k_errs_less_than_q4_0_and_its_scales_survive() -> None:
    """By the package's own reading. Numbers that are 16 steps on a line come back nearly."""
    rng = np.random.default_rng(4)
    q4_k, q4_0 = quant.quantizer("q4_k"), quant.quantizer("q4_0")
    for floats in (rng.standard_normal((200, 256)), rng.uniform(-0.1, 2, (50, 256)), rng.standard_t(3, (200, 256))):
        floats = floats.astype(np.float32)
        theirs_back = dequantize(q4_k.quantize(floats), theirs("q4_k")).reshape(floats.shape)
        old = q4_0.dequantize(q4_0.quantize(floats.reshape(-1, 32))).reshape(floats.shape)
        assert ((theirs_back - floats) ** 2).sum() < 0.9 * ((old - floats) ** 2).sum()
    steps = rng.integers(0, 16, (30, 8, 32)).astype(np.float32)
    steps[..., 0], steps[..., 1] = 0, 15
    exact = (steps * rng.integers(20, 64, (30, 8, 1)) / 64 - rng.integers(20, 64, (30, 8, 1)) / 16).reshape(-1, 256)
    back = q4_k.dequantize(q4_k.quantize(exact.astype(np.float32)))
    assert np.abs(back - exact).max() < 0.25
    assert not q4_k.dequantize(q4_k.quantize(np.zeros((1, 256), np.float32))).any()
    tiny = np.linspace(-1e-39, 1e-39, 256, dtype=np.float32).reshape(1, 256)
    assert np.abs(q4_k.dequantize(q4_k.quantize(tiny))).max() < 1e-37


def test_six_bit_scales_round_trip() -> None:
    scales, minima = np.random.default_rng(5).integers(0, 64, (2, 100, 8)).astype(np.uint8)
    for got, want in zip(six_bit_pairs(six_bit_bytes(scales, minima)), (scales, minima), strict=True):
        np.testing.assert_array_equal(got, want)
