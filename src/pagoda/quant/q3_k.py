"""Q3_K: 256 numbers as f16 d, sixteen 6-bit scales and 3-bit q; a number is d * (scale - 32) * (q - 4)."""

from __future__ import annotations

import numpy as np

from pagoda.backends.ops import Bytes, Floats
from pagoda.quant.blocks import bit_pairs, halves


class Q3_K:
    """110 bytes a block: third bits, pairs of bits, scales, d. Bit j of third byte i belongs to number 32 * j + i.

    Of the scales, bytes 0 to 7 hold the nibbles (0 to 7 low, 8 to 15 high), bytes 8 to 11 the upper pairs of bits.
    """

    name = "q3_k"
    block = 256
    block_bytes = 110

    def dequantize(self, raw: Bytes) -> Floats:
        """[blocks, 110] -> [blocks, 256]; d * scale is exact, and so is the product with q."""
        third = np.unpackbits(raw[:, :32, None], axis=2, bitorder="little").swapaxes(1, 2).reshape(-1, 256)
        integers = (bit_pairs(raw[:, 32:96]) | third << np.uint8(2)).view(np.int8) - np.int8(4)
        low = np.concatenate([raw[:, 96:104] & np.uint8(15), raw[:, 96:104] >> np.uint8(4)], axis=1)
        shifts = np.array([0, 2, 4, 6], dtype=np.uint8)[:, None]
        high = (raw[:, None, 104:108] >> shifts & np.uint8(3)).reshape(-1, 16)
        scales = (low | high << np.uint8(4)).view(np.int8) - np.int8(32)
        with np.errstate(invalid="ignore"):
            factors = halves(raw[:, 108:]) * scales
            numbers: Floats = factors[..., None] * integers.reshape(-1, 16, 16)
        return numbers.reshape(-1, 256)
