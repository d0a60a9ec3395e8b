"""F32: a number as it is, little-endian."""

from __future__ import annotations

import numpy as np

from pagoda.backends.ops import Bytes, Floats


class F32:
    """4 bytes a number; a block is one number."""

    name = "f32"
    block = 1
    block_bytes = 4

    def dequantize(self, raw: Bytes) -> Floats:
        """[numbers, 4] -> [numbers, 1]."""
        return np.ascontiguousarray(raw).view("<f4").astype(np.float32, copy=False)

    def quantize(self, floats: Floats) -> Bytes:
        """[numbers, 1] -> [numbers, 4]."""
        return np.ascontiguousarray(floats).astype("<f4", copy=False).view(np.uint8)
