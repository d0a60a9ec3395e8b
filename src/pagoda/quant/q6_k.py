"""Q6_K: 256 numbers as 6-bit q, sixteen signed byte scales and f16 d; a number is d * scale * (q - 32)."""

from __future__ import annotations

import numpy as np

from pagoda.backends.ops import Bytes, Floats
from pagoda.quant.blocks import finite, half_bytes, halves, inverse, nibble_bytes, nibbles
from pagoda.quant.grid import Grid, Integers, slopes


class Q6_K:
    """210 bytes a block: nibbles, upper pairs of bits, scales, d. Each half of a block is stored by itself."""

    name = "q6_k"
    block = 256
    block_bytes = 210

    def dequantize(self, raw: Bytes) -> Floats:
        """[blocks, 210] -> [blocks, 256]; d * scale is exact and the product with q is rounded once."""
        low = nibbles(raw[:, :128].reshape(-1, 64)).reshape(-1, 2, 4, 32)
        shifts = np.array([0, 2, 4, 6], dtype=np.uint8)[:, None]
        high = raw[:, 128:192].reshape(-1, 2, 1, 32) >> shifts & 3
        integers = (low | high << 4).view(np.int8) - np.int8(32)
        with np.errstate(invalid="ignore"):
            factors = halves(raw[:, 208:]) * raw[:, 192:208].view(np.int8)
            return (factors[..., None] * integers.reshape(-1, 16, 16)).reshape(-1, 256)

    def quantize(self, floats: Floats) -> Bytes:
        """[blocks, 256] -> [blocks, 210]: scales of least error, and the numbers nearest with those."""
        grid = self.grid(floats)
        return self.pack(grid, grid.nearest(floats))

    def grid(self, floats: Floats, weights: Floats | None = None) -> Grid:
        """Scales for [blocks, 256] numbers: of each 16, as multiples of the block's own, rounded to 8 bits."""
        groups = finite(floats).reshape(-1, 16, 16)
        scales = slopes(groups, -32, None if weights is None else weights.reshape(groups.shape))
        d = half_bytes(np.abs(scales).max(axis=1, keepdims=True) / np.float32(127))
        factors = np.clip(np.rint(scales * inverse(halves(d))), -127, 127).astype(np.int8)
        steps = halves(d) * factors
        return Grid(steps, np.zeros_like(steps), -32, 31, (factors.view(np.uint8), d))

    def pack(self, grid: Grid, integers: Integers) -> Bytes:
        """[blocks, 256] integers from -32 to 31 -> [blocks, 210]."""
        whole = (integers + np.int8(32)).view(np.uint8).reshape(-1, 2, 4, 32)
        low = nibble_bytes((whole & np.uint8(15)).reshape(-1, 2, 128)).reshape(-1, 128)
        pairs = whole >> np.uint8(4)
        high = pairs[:, :, 0] | pairs[:, :, 1] << np.uint8(2) | pairs[:, :, 2] << np.uint8(4)
        high |= pairs[:, :, 3] << np.uint8(6)
        return np.concatenate([low, high.reshape(-1, 64), *grid.scales], axis=1)
