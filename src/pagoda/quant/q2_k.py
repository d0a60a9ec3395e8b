"""Q2_K: 256 numbers as f16 d and m, sixteen nibbles each of scale and minimum, 2-bit q; d * scale * q - m * min."""

from __future__ import annotations

import numpy as np

from pagoda.backends.ops import Bytes, Floats
from pagoda.quant.blocks import bit_pairs, halves


class Q2_K:
    """84 bytes a block: scales (low) and minima (high nibbles) of 16 numbers each, pairs of bits, d, m."""

    name = "q2_k"
    block = 256
    block_bytes = 84

    def dequantize(self, raw: Bytes) -> Floats:
        """[blocks, 84] -> [blocks, 256]; the products are exact and the difference is rounded once."""
        integers = bit_pairs(raw[:, 16:80]).reshape(-1, 16, 16)
        with np.errstate(invalid="ignore"):
            factors = halves(raw[:, 80:82]) * (raw[:, :16] & np.uint8(15)).astype(np.float32)
            offsets = halves(raw[:, 82:]) * (raw[:, :16] >> np.uint8(4)).astype(np.float32)
            numbers: Floats = factors[..., None] * integers.astype(np.float32) - offsets[..., None]
        return numbers.reshape(-1, 256)
