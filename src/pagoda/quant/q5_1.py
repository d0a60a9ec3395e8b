"""Q5_1: 32 numbers as f16 scale d, f16 minimum m, 32 high bits and sixteen bytes of nibbles; of 5-bit q, d * q + m."""

from __future__ import annotations

import numpy as np

from pagoda.backends.ops import Bytes, Floats
from pagoda.quant.blocks import (
    fifth_bit_bytes,
    fifth_bits,
    finite,
    half_bytes,
    halves,
    inverse,
    nibble_bytes,
    nibbles,
)
from pagoda.quant.grid import Grid, Integers, lines


class Q5_1:
    """24 bytes a block: scale, minimum, high bits, nibbles."""

    name = "q5_1"
    block = 32
    block_bytes = 24

    def dequantize(self, raw: Bytes) -> Floats:
        """[blocks, 24] -> [blocks, 32]; the product is exact and the sum is rounded once."""
        integers = nibbles(raw[:, 8:]) | fifth_bits(raw[:, 4:8])
        with np.errstate(invalid="ignore"):
            return halves(raw[:, :2]) * integers + halves(raw[:, 2:4])

    def quantize(self, floats: Floats) -> Bytes:
        """[blocks, 32] -> [blocks, 24], as ggml's quantize_row_q5_1_ref: 0 to 31 span minimum to maximum."""
        finite(floats)
        minimum = floats.min(axis=1, keepdims=True)
        scale = (floats.max(axis=1, keepdims=True) - minimum) / np.float32(31)
        integers = np.minimum(((floats - minimum) * inverse(scale) + np.float32(0.5)).astype(np.uint8), 31)
        return np.concatenate([half_bytes(scale), half_bytes(minimum), *_packed(integers)], axis=1)

    def grid(self, floats: Floats, weights: Floats | None = None) -> Grid:
        """Scales and minima of least error for [blocks, 32] numbers."""
        scale, below = lines(finite(floats), 31, weights)
        raw = (half_bytes(scale[:, None]), half_bytes(-below[:, None]))
        return Grid(halves(raw[0]), halves(raw[1]), 0, 31, raw)

    def pack(self, grid: Grid, integers: Integers) -> Bytes:
        """[blocks, 32] integers from 0 to 31 -> [blocks, 24]."""
        return np.concatenate([*grid.scales, *_packed(integers.view(np.uint8))], axis=1)


def _packed(integers: Bytes) -> tuple[Bytes, Bytes]:
    """The high bits and the nibbles of integers under 32."""
    return fifth_bit_bytes(integers), nibble_bytes(integers & np.uint8(15))
