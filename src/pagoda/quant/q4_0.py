"""Q4_0: 32 numbers as f16 scale d and sixteen bytes of nibbles q; a number is d * (q - 8)."""

from __future__ import annotations

import numpy as np

from pagoda.backends.ops import Bytes, Floats
from pagoda.quant.blocks import finite, half_bytes, halves, inverse, nibble_bytes, nibbles
from pagoda.quant.grid import Grid, Integers, slopes


class Q4_0:
    """18 bytes a block: scale, nibbles."""

    name = "q4_0"
    block = 32
    block_bytes = 18

    def dequantize(self, raw: Bytes) -> Floats:
        """[blocks, 18] -> [blocks, 32]; exact: the product of 11 and 4 bits fits f32."""
        scale = halves(raw[:, :2])
        integers = nibbles(raw[:, 2:]).view(np.int8) - np.int8(8)
        with np.errstate(invalid="ignore"):
            return scale * integers

    def quantize(self, floats: Floats) -> Bytes:
        """[blocks, 32] -> [blocks, 18], as ggml's quantize_row_q4_0_ref: the number of largest magnitude becomes -8."""
        finite(floats)
        largest = np.take_along_axis(floats, np.abs(floats).argmax(axis=1, keepdims=True), axis=1)
        scale = largest / np.float32(-8)
        integers = (floats * inverse(scale) + np.float32(8.5)).astype(np.uint8)
        return np.concatenate([half_bytes(scale), nibble_bytes(np.minimum(integers, 15))], axis=1)

    def grid(self, floats: Floats, weights: Floats | None = None) -> Grid:
        """Scales of least error for [blocks, 32] numbers."""
        raw = half_bytes(slopes(finite(floats), -8, weights)[:, None])
        scale = halves(raw)
        return Grid(scale, np.zeros_like(scale), -8, 7, (raw,))

    def pack(self, grid: Grid, integers: Integers) -> Bytes:
        """[blocks, 32] integers from -8 to 7 -> [blocks, 18]."""
        return np.concatenate([*grid.scales, nibble_bytes((integers + np.int8(8)).view(np.uint8))], axis=1)
