"""Q5_0: 32 numbers as f16 scale d, 32 high bits and sixteen bytes of nibbles; of 5-bit q a number is d * (q - 16)."""

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
from pagoda.quant.grid import Grid, Integers, slopes


class Q5_0:
    """22 bytes a block: scale, high bits, nibbles."""

    name = "q5_0"
    block = 32
    block_bytes = 22

    def dequantize(self, raw: Bytes) -> Floats:
        """[blocks, 22] -> [blocks, 32]; exact: the product of 11 and 5 bits fits f32."""
        integers = (nibbles(raw[:, 6:]) | fifth_bits(raw[:, 2:6])).view(np.int8) - np.int8(16)
        with np.errstate(invalid="ignore"):
            return halves(raw[:, :2]) * integers

    def quantize(self, floats: Floats) -> Bytes:
        """[blocks, 32] -> [blocks, 22], as ggml's quantize_row_q5_0_ref: the one of largest magnitude becomes -16."""
        finite(floats)
        largest = np.take_along_axis(floats, np.abs(floats).argmax(axis=1, keepdims=True), axis=1)
        scale = largest / np.float32(-16)
        integers = np.minimum((floats * inverse(scale) + np.float32(16.5)).astype(np.uint8), 31)
        return np.concatenate([half_bytes(scale), *_packed(integers)], axis=1)

    def grid(self, floats: Floats, weights: Floats | None = None) -> Grid:
        """Scales of least error for [blocks, 32] numbers."""
        raw = half_bytes(slopes(finite(floats), -16, weights)[:, None])
        scale = halves(raw)
        return Grid(scale, np.zeros_like(scale), -16, 15, (raw,))

    def pack(self, grid: Grid, integers: Integers) -> Bytes:
        """[blocks, 32] integers from -16 to 15 -> [blocks, 22]."""
        return np.concatenate([*grid.scales, *_packed((integers + np.int8(16)).view(np.uint8))], axis=1)


def _packed(integers: Bytes) -> tuple[Bytes, Bytes]:
    """The high bits and the nibbles of integers under 32."""
    return fifth_bit_bytes(integers), nibble_bytes(integers & np.uint8(15))
