"""Q6_K: 256 numbers as 6-bit q, sixteen signed byte scales and f16 d; a number is d * scale * (q - 32)."""

from __future__ import annotations

import numpy as np

from pagoda.backends.ops import Bytes, Floats
from pagoda.quant.blocks import halves, nibbles


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
