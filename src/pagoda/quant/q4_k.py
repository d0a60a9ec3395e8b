"""Q4_K: 256 numbers as f16 d and m, eight 6-bit scales and minima, nibbles q; a number is d * scale * q - m * min."""

from __future__ import annotations

import numpy as np

from pagoda.backends.ops import Bytes, Floats
from pagoda.quant.blocks import halves, nibbles, six_bit_pairs


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
