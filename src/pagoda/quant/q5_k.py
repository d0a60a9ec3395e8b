"""Q5_K: 256 numbers as f16 d and m, eight 6-bit scales and minima, 5-bit q; a number is d * scale * q - m * min."""

from __future__ import annotations

import numpy as np

from pagoda.backends.ops import Bytes, Floats
from pagoda.quant.blocks import halves, nibble_bytes, nibbles, six_bit_pairs
from pagoda.quant.grid import Grid, Integers
from pagoda.quant.q4_k import line_grid


class Q5_K:
    """176 bytes a block: d, m, scales and minima, fifth bits, nibbles. Bit j of fifth byte i belongs to 32 * j + i."""

    name = "q5_k"
    block = 256
    block_bytes = 176

    def dequantize(self, raw: Bytes) -> Floats:
        """[blocks, 176] -> [blocks, 256]; the products are exact and the difference is rounded once."""
        scales, minima = six_bit_pairs(raw[:, 4:16])
        fifth = np.unpackbits(raw[:, 16:48, None], axis=2, bitorder="little").swapaxes(1, 2) << np.uint8(4)
        integers = nibbles(raw[:, 48:].reshape(-1, 32)).reshape(-1, 8, 32) | fifth
        with np.errstate(invalid="ignore"):
            factors, offsets = halves(raw[:, :2]) * scales, halves(raw[:, 2:4]) * minima
            return (factors[..., None] * integers - offsets[..., None]).reshape(-1, 256)

    def quantize(self, floats: Floats) -> Bytes:
        """[blocks, 256] -> [blocks, 176]: scales and minima of least error, and the numbers nearest with those."""
        grid = self.grid(floats)
        return self.pack(grid, grid.nearest(floats))

    def grid(self, floats: Floats, weights: Floats | None = None) -> Grid:
        """Scales and minima for [blocks, 256] numbers."""
        return line_grid(floats, 31, weights)

    def pack(self, grid: Grid, integers: Integers) -> Bytes:
        """[blocks, 256] integers from 0 to 31 -> [blocks, 176]."""
        whole = integers.view(np.uint8)
        fifth = np.packbits(whole.reshape(-1, 8, 32) >> np.uint8(4), axis=1, bitorder="little")[:, 0]
        packed = nibble_bytes(whole.reshape(-1, 64) & np.uint8(15)).reshape(-1, 128)
        return np.concatenate([*grid.scales, fifth, packed], axis=1)
