"""Q5_1: 32 numbers as f16 scale d, f16 minimum m, 32 high bits and sixteen bytes of nibbles; of 5-bit q, d * q + m."""

from __future__ import annotations

import numpy as np

from pagoda.backends.ops import Bytes, Floats
from pagoda.quant.blocks import fifth_bits, halves, nibbles


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
