"""Weight formats as their specification has them, written apart from `pagoda.quant`, and tensors full of random bytes.

Random bytes rather than quantised numbers: they hold every integer a format has (-128 in Q8_0, which no quantiser
writes), scales of both signs, zero and subnormal.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from pagoda.backends.ops import Bytes, Floats, StoredTensor


def _halves(raw: Bytes) -> Floats:
    return np.ascontiguousarray(raw).view(np.float16).astype(np.float32)


def _nibbles(raw: Bytes) -> Floats:
    return np.concatenate([raw & 15, raw >> 4], axis=1).astype(np.float32)


def _bf16(raw: Bytes) -> Floats:
    return (np.ascontiguousarray(raw).view(np.uint16).astype(np.uint32) << 16).view(np.float32)


@dataclass(frozen=True, slots=True)
class Format:
    """A `StoredFormat`."""

    name: str
    block: int
    block_bytes: int
    dequantize: Callable[[Bytes], Floats]
    scales: int = 0
    """f16 numbers at a block's beginning."""


FORMATS = {
    f.name: f
    for f in (
        Format("f32", 1, 4, lambda raw: np.ascontiguousarray(raw).view(np.float32)),
        Format("f16", 1, 2, _halves),
        Format("bf16", 1, 2, _bf16),
        Format("q4_0", 32, 18, lambda raw: _halves(raw[:, :2]) * (_nibbles(raw[:, 2:]) - 8), 1),
        Format("q4_1", 32, 20, lambda raw: _halves(raw[:, :2]) * _nibbles(raw[:, 4:]) + _halves(raw[:, 2:4]), 2),
        Format("q8_0", 32, 34, lambda raw: _halves(raw[:, :2]) * raw[:, 2:].view(np.int8).astype(np.float32), 1),
    )
}
QUANTISED = ("q4_0", "q4_1", "q8_0")


def _scales(rng: np.random.Generator, fmt: Format, blocks: int, size: float) -> Bytes:
    """Bytes of the f16 scales of each block: mostly ordinary, now and then 0 or subnormal."""
    step = size / {"q4_0": 4, "q4_1": 4, "q8_0": 64}[fmt.name]
    d = step * rng.uniform(0.5, 1.5, (blocks, fmt.scales)) * rng.choice([-1, 1], (blocks, fmt.scales))
    if fmt.scales == 2:  # a minimum that centres the block
        d[:, 1] = -7.5 * d[:, 0] * rng.uniform(0.7, 1.3, blocks)
    rare = rng.random(blocks)
    d[rare < 0.02, 0] = 0
    d[rare > 0.98, 0] = 3e-7
    return d.astype(np.float16).view(np.uint8)


def random_tensor(rng: np.random.Generator, name: str, shape: tuple[int, ...], size: float = 1.0) -> StoredTensor:
    """A tensor in the format `name` whose numbers are about `size`."""
    fmt = FORMATS[name]
    blocks = int(np.prod(shape)) // fmt.block
    assert shape[-1] % fmt.block == 0
    if fmt.scales:
        raw = rng.integers(0, 256, (blocks, fmt.block_bytes), np.uint8)
        raw[:, : 2 * fmt.scales] = _scales(rng, fmt, blocks, size)
    else:
        numbers = (rng.standard_normal(blocks) * size).astype(np.float32)
        if name == "f32":
            raw = numbers.view(np.uint8)
        elif name == "f16":
            raw = numbers.astype(np.float16).view(np.uint8)
        else:
            raw = (numbers.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)
    return StoredTensor(f"{name}{list(shape)}", shape, fmt, raw.reshape(-1))
