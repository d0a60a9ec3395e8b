"""Q8_0: 32 numbers as f16 scale d and 32 signed bytes q; a number is d * q."""

from __future__ import annotations

import numpy as np

from pagoda.backends.ops import Bytes, Floats
from pagoda.quant.blocks import finite, half_bytes, halves, inverse
from pagoda.quant.grid import Grid, Integers


class Q8_0:
    """34 bytes a block: scale, integers."""

    name = "q8_0"
    block = 32
    block_bytes = 34

    def dequantize(self, raw: Bytes) -> Floats:
        """[blocks, 34] -> [blocks, 32]; exact: the product of 11 and 8 bits fits f32."""
        with np.errstate(invalid="ignore"):
            return halves(raw[:, :2]) * raw[:, 2:].view(np.int8)

    def quantize(self, floats: Floats) -> Bytes:
        """[blocks, 32] -> [blocks, 34], as ggml's quantize_row_q8_0_ref: the largest becomes 127."""
        finite(floats)
        scale = np.abs(floats).max(axis=1, keepdims=True) / np.float32(127)
        scaled = floats * inverse(scale)
        magnitude = np.abs(scaled)  # C's roundf: halves away from zero
        whole = np.floor(magnitude)
        whole += (magnitude - whole) >= np.float32(0.5)
        integers = np.copysign(whole, scaled).astype(np.int8)
        return np.concatenate([half_bytes(scale), integers.view(np.uint8)], axis=1)

    def grid(self, floats: Floats, weights: Floats | None = None) -> Grid:  # noqa: ARG002
        """Scales that take the largest of [blocks, 32] numbers to 127: so fine that errors need no weights."""
        raw = half_bytes(np.abs(finite(floats)).max(axis=1, keepdims=True) / np.float32(127))
        scale = halves(raw)
        return Grid(scale, np.zeros_like(scale), -127, 127, (raw,))

    def pack(self, grid: Grid, integers: Integers) -> Bytes:
        """[blocks, 32] integers -> [blocks, 34]."""
        return np.concatenate([*grid.scales, integers.view(np.uint8)], axis=1)
