"""Weight formats as their specification or the `gguf` package has them, apart from `pagoda.quant`, and tensors full of
random bytes.

Random bytes rather than quantised numbers: they hold every integer a format has (-128 in Q8_0, which no quantiser
writes), scales of both signs, zero and subnormal.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType
from gguf.constants import GGML_QUANT_SIZES
from gguf.quants import dequantize

from pagoda.backends.ops import Bytes, Floats, StoredTensor


def _halves(raw: Bytes) -> Floats:
    return np.ascontiguousarray(raw).view(np.float16).astype(np.float32)


def _nibbles(raw: Bytes) -> Floats:
    return np.concatenate([raw & 15, raw >> 4], axis=1).astype(np.float32)


def _bf16(raw: Bytes) -> Floats:
    return (np.ascontiguousarray(raw).view(np.uint16).astype(np.uint32) << 16).view(np.float32)


def _singles(raw: Bytes) -> Floats:
    return np.ascontiguousarray(raw).view(np.float32)


def _words(raw: Bytes, block: int) -> Floats:
    """Nibbles of 16 bytes for each 32 numbers."""
    return _nibbles(raw.reshape(-1, 16)).reshape(-1, block)


def _eight_bits(exponent_bits: int) -> Floats:
    """All 8-bit floats, by their definition; codes of NaN and infinity count as numbers."""
    mantissa_bits, numbers = 7 - exponent_bits, []
    bias = (1 << (exponent_bits - 1)) - 1
    for code in range(256):
        exponent, mantissa = (code & 127) >> mantissa_bits, (code & ((1 << mantissa_bits) - 1)) / (1 << mantissa_bits)
        size = 2.0 ** (exponent - bias) * (1 + mantissa) if exponent else 2.0 ** (1 - bias) * mantissa
        numbers.append(-size if code & 128 else size)
    return np.array(numbers, np.float32)


E4M3, E5M2 = _eight_bits(4), _eight_bits(5)


@dataclass(frozen=True, slots=True)
class Format:
    """A `StoredFormat`."""

    name: str
    block: int
    block_bytes: int
    dequantize: Callable[[Bytes], Floats]
    scale: int | None = None
    """Where a block's f16 scale lies."""
    minimum: int | None = None
    """Where its f16 offset, or minimum, lies."""
    size: float = 1.0
    """Of a block's numbers, about, if the scale is 1."""
    centre: float = 0.0
    """The minimum, per scale, that centres a block."""
    single: bool = False
    """Whether the scale is f32 and the minimum a whole number, to be multiplied by it."""


def _packaged(kind: GGMLQuantizationType, **rest: Any) -> Format:
    """A format as the `gguf` package reads it."""
    block, block_bytes = GGML_QUANT_SIZES[kind]
    return Format(kind.name.lower(), block, block_bytes, lambda raw: dequantize(raw, kind), **rest)


_T = GGMLQuantizationType
FORMATS = {
    f.name: f
    for f in (
        Format("f32", 1, 4, lambda raw: np.ascontiguousarray(raw).view(np.float32)),
        Format("f16", 1, 2, _halves),
        Format("bf16", 1, 2, _bf16),
        Format("q4_0", 32, 18, lambda raw: _halves(raw[:, :2]) * (_nibbles(raw[:, 2:]) - 8), 0, None, 4),
        Format(
            "q4_1", 32, 20, lambda raw: _halves(raw[:, :2]) * _nibbles(raw[:, 4:]) + _halves(raw[:, 2:4]), 0, 2, 4, -7.5
        ),
        Format(
            "q8_0", 32, 34, lambda raw: _halves(raw[:, :2]) * raw[:, 2:].view(np.int8).astype(np.float32), 0, None, 64
        ),
        _packaged(_T.Q5_0, scale=0, size=8),
        _packaged(_T.Q5_1, scale=0, minimum=2, size=8, centre=-15.5),
        _packaged(_T.Q2_K, scale=80, minimum=82, size=7.5, centre=1.5),
        _packaged(_T.Q3_K, scale=108, size=32),
        _packaged(_T.Q4_K, scale=0, minimum=2, size=128, centre=7.5),
        _packaged(_T.Q5_K, scale=0, minimum=2, size=256, centre=15.5),
        _packaged(_T.Q6_K, scale=208, size=1024),
        _packaged(_T.IQ4_NL, scale=0, size=64),
        _packaged(_T.IQ4_XS, scale=0, size=1024),
        _packaged(_T.MXFP4),
        *(
            Format(
                f"q4_z{block}",
                block,
                6 + block // 2,
                lambda raw, block=block: _singles(raw[:, :4]) * (_words(raw[:, 6:], block) - 8 + _halves(raw[:, 4:6])),
                0,
                4,
                4,
                single=True,
            )
            for block in (32, 128)
        ),
        *(
            Format(
                f"q8_z{block}",
                block,
                6 + block,
                lambda raw: _singles(raw[:, :4]) * (raw[:, 6:].astype(np.float32) - 128 + _halves(raw[:, 4:6])),
                0,
                4,
                64,
                single=True,
            )
            for block in (32, 128)
        ),
        Format("f8_e4m3", 32, 36, lambda raw: _singles(raw[:, :4]) * E4M3[raw[:, 4:]], 0, None, 128, single=True),
        Format("f8_e5m2", 32, 36, lambda raw: _singles(raw[:, :4]) * E5M2[raw[:, 4:]], 0, None, 16384, single=True),
    )
}
QUANTISED = tuple(f.name for f in FORMATS.values() if f.block > 1)


def random_blocks(rng: np.random.Generator, fmt: Format, blocks: int, size: float) -> Bytes:
    """Blocks [blocks, block_bytes] of a quantised format, of numbers about `size`: all bytes are random but the scales,
    which are mostly ordinary, now and then 0 or subnormal."""
    raw = rng.integers(0, 256, (blocks, fmt.block_bytes), np.uint8)
    if fmt.name == "f8_e5m2":  # no NaN, no infinity
        raw[(raw & 0x7C) == 0x7C] &= 0xF3
    if fmt.scale is None:  # MXFP4: e is 2^(e - 128) of a number of about 4
        raw[:, 0] = 126 + round(np.log2(size)) + rng.integers(-2, 2, blocks)
        raw[rng.random(blocks) < 0.02, 0] = 0
        return raw
    d = size / fmt.size * rng.uniform(0.5, 1.5, blocks) * rng.choice([-1, 1], blocks)
    rare = rng.random(blocks)
    if fmt.minimum is not None and fmt.single:
        m = np.rint(fmt.size / 4 * rng.uniform(-1, 1, blocks)).astype(np.float16)
        raw[:, fmt.minimum : fmt.minimum + 2] = m[:, None].view(np.uint8)
    elif fmt.minimum is not None:
        m = (fmt.centre * d * rng.uniform(0.7, 1.3, blocks)).astype(np.float16)
        raw[:, fmt.minimum : fmt.minimum + 2] = m[:, None].view(np.uint8)
    d[rare < 0.02] = 0
    d[rare > 0.98] = 3e-7
    kind = np.float32 if fmt.single else np.float16
    raw[:, fmt.scale : fmt.scale + np.dtype(kind).itemsize] = d.astype(kind)[:, None].view(np.uint8)
    return raw


def random_tensor(rng: np.random.Generator, name: str, shape: tuple[int, ...], size: float = 1.0) -> StoredTensor:
    """A tensor in the format `name` whose numbers are about `size`."""
    fmt = FORMATS[name]
    blocks = int(np.prod(shape)) // fmt.block
    assert shape[-1] % fmt.block == 0
    if fmt.block > 1:
        raw = random_blocks(rng, fmt, blocks, size)
    else:
        numbers = (rng.standard_normal(blocks) * size).astype(np.float32)
        if name == "f32":
            raw = numbers.view(np.uint8)
        elif name == "f16":
            raw = numbers.astype(np.float16).view(np.uint8)
        else:
            raw = (numbers.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)
    return StoredTensor(f"{name}{list(shape)}", shape, fmt, raw.reshape(-1))
