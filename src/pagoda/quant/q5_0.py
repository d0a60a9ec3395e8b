"""Q5_0: 32 numbers as f16 scale d, 32 high bits and sixteen bytes of nibbles; of 5-bit q a number is d * (q - 16)."""

from __future__ import annotations

import numpy as np

from pagoda.backends.ops import Bytes, Floats
from pagoda.quant.blocks import fifth_bits, halves, nibbles


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
