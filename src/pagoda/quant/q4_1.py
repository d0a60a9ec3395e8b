"""Q4_1: 32 numbers as f16 scale d, f16 minimum m and sixteen bytes of nibbles q; a number is d * q + m."""

from __future__ import annotations

import numpy as np

from pagoda.backends.ops import Bytes, Floats
from pagoda.quant.blocks import finite, half_bytes, halves, inverse, nibble_bytes, nibbles
from pagoda.quant.grid import Grid, Integers, lines


class Q4_1:
    """20 bytes a block: scale, minimum, nibbles."""

    name = "q4_1"
    block = 32
    block_bytes = 20

    def dequantize(self, raw: Bytes) -> Floats:
        """[blocks, 20] -> [blocks, 32]; the product is exact and the sum is rounded once."""
        scale, minimum = halves(raw[:, :2]), halves(raw[:, 2:4])
        with np.errstate(invalid="ignore"):
            return scale * nibbles(raw[:, 4:]) + minimum

    def quantize(self, floats: Floats) -> Bytes:
        """[blocks, 32] -> [blocks, 20], as ggml's quantize_row_q4_1_ref: 0 to 15 span minimum to maximum."""
        finite(floats)
        minimum = floats.min(axis=1, keepdims=True)
        scale = (floats.max(axis=1, keepdims=True) - minimum) / np.float32(15)
        integers = ((floats - minimum) * inverse(scale) + np.float32(0.5)).astype(np.uint8)
        packed = nibble_bytes(np.minimum(integers, 15))
        return np.concatenate([half_bytes(scale), half_bytes(minimum), packed], axis=1)

    def grid(self, floats: Floats, weights: Floats | None = None) -> Grid:
        """Scales and minima of least error for [blocks, 32] numbers."""
        scale, below = lines(finite(floats), 15, weights)
        raw = (half_bytes(scale[:, None]), half_bytes(-below[:, None]))
        return Grid(halves(raw[0]), halves(raw[1]), 0, 15, raw)

    def pack(self, grid: Grid, integers: Integers) -> Bytes:
        """[blocks, 32] integers from 0 to 15 -> [blocks, 20]."""
        return np.concatenate([*grid.scales, nibble_bytes(integers.view(np.uint8))], axis=1)
