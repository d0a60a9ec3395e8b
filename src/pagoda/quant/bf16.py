"""BF16: the upper half of an f32, little-endian."""

from __future__ import annotations

import numpy as np

from pagoda.backends.ops import Bytes, Floats


class BF16:
    """2 bytes a number; a block is one number."""

    name = "bf16"
    block = 1
    block_bytes = 2

    def dequantize(self, raw: Bytes) -> Floats:
        """[numbers, 2] -> [numbers, 1]; exact: the lower half is zero."""
        return (np.ascontiguousarray(raw).view("<u2").astype(np.uint32) << 16).view(np.float32)

    def quantize(self, floats: Floats) -> Bytes:
        """[numbers, 1] -> [numbers, 2], to nearest even; a NaN stays one and becomes quiet."""
        bits = np.ascontiguousarray(floats, dtype=np.float32).view(np.uint32)
        rounded = (bits + (0x7FFF + ((bits >> 16) & 1))) >> 16
        quiet = (bits >> 16) | 0x40
        return np.where(np.isnan(floats), quiet, rounded).astype("<u2").view(np.uint8)
