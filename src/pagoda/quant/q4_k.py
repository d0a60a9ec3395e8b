"""Q4_K: 256 numbers as f16 d and m, eight 6-bit scales and minima, nibbles q; a number is d * scale * q - m * min."""

from __future__ import annotations

import numpy as np

from pagoda.backends.ops import Bytes, Floats
from pagoda.quant.blocks import finite, half_bytes, halves, inverse, nibble_bytes, nibbles, six_bit_bytes, six_bit_pairs
from pagoda.quant.grid import Grid, Integers, lines


class Q4_K:
    """144 bytes a block: d, m, scales and minima, nibbles. Scale j serves numbers 32 * j to 32 * j + 31."""

    name = "q4_k"
    block = 256
    block_bytes = 144

    def dequantize(self, raw: Bytes) -> Floats:
        """[blocks, 144] -> [blocks, 256]; the products are exact and the difference is rounded once."""
        scales, minima = six_bit_pairs(raw[:, 4:16])
        integers = nibbles(raw[:, 16:].reshape(-1, 32)).reshape(-1, 8, 32)
        with np.errstate(invalid="ignore"):
            factors, offsets = halves(raw[:, :2]) * scales, halves(raw[:, 2:4]) * minima
            return (factors[..., None] * integers - offsets[..., None]).reshape(-1, 256)

    def quantize(self, floats: Floats) -> Bytes:
        """[blocks, 256] -> [blocks, 144]: scales and minima of least error, and the numbers nearest with those."""
        grid = self.grid(floats)
        return self.pack(grid, grid.nearest(floats))

    def grid(self, floats: Floats, weights: Floats | None = None) -> Grid:
        """Scales and minima for [blocks, 256] numbers."""
        return line_grid(floats, 15, weights)

    def pack(self, grid: Grid, integers: Integers) -> Bytes:
        """[blocks, 256] integers from 0 to 15 -> [blocks, 144]."""
        packed = nibble_bytes(integers.view(np.uint8).reshape(-1, 64)).reshape(-1, 128)
        return np.concatenate([*grid.scales, packed], axis=1)


def line_grid(floats: Floats, top: int, weights: Floats | None) -> Grid:
    """A line through each 32 numbers; then scales and minima, as multiples of the block's own, are rounded to 6 bits.

    Args:
        floats: [blocks, 256].
        top: the largest integer: 15, or 31 for Q5_K.
        weights: [blocks, 256]: how much an error counts.
    """
    groups = finite(floats).reshape(-1, 8, 32)
    scales, minima = lines(groups, top, None if weights is None else weights.reshape(groups.shape))
    d, m = (half_bytes(x.max(axis=1, keepdims=True) / np.float32(63)) for x in (scales, minima))
    factors, offsets = (
        np.minimum(np.rint(x * inverse(halves(raw))), 63).astype(np.uint8) for x, raw in ((scales, d), (minima, m))
    )
    return Grid(halves(d) * factors, -(halves(m) * offsets), 0, top, (d, m, six_bit_bytes(factors, offsets)))
