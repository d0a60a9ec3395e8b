"""IQ4_XS: 256 numbers as f16 d, eight 6-bit scales and nibbles q; a number is d * (scale - 32) * table[q]."""

from __future__ import annotations

import numpy as np

from pagoda.backends.ops import Bytes, Floats
from pagoda.quant.blocks import UNEVEN, halves, nibbles


class IQ4_XS:
    """136 bytes a block: d, upper pairs of bits (2) and nibbles (4) of the scales, nibbles of the numbers."""

    name = "iq4_xs"
    block = 256
    block_bytes = 136

    def dequantize(self, raw: Bytes) -> Floats:
        """[blocks, 136] -> [blocks, 256]; d * scale is exact and the product with the table's is rounded once."""
        pairs = np.array([0, 2, 4, 6], dtype=np.uint8)
        high = (raw[:, 2:4, None] >> pairs & np.uint8(3)).reshape(-1, 8)
        low = (raw[:, 4:8, None] >> pairs[[0, 2]] & np.uint8(15)).reshape(-1, 8)
        scales = (low | high << np.uint8(4)).view(np.int8) - np.int8(32)
        integers = nibbles(raw[:, 8:].reshape(-1, 16)).reshape(-1, 8, 32)
        with np.errstate(invalid="ignore"):
            factors = halves(raw[:, :2]) * scales.astype(np.float32)
            numbers: Floats = factors[..., None] * UNEVEN[integers]
        return numbers.reshape(-1, 256)
