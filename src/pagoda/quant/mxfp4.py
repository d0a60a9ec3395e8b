"""MXFP4: 32 numbers as a power of two and 4-bit floats (OCP Microscaling Formats 1.0: E8M0 scale, E2M1 elements)."""

from __future__ import annotations

import numpy as np

from pagoda.backends.ops import Bytes, Floats
from pagoda.quant.blocks import nibbles

TWICE_E2M1 = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], dtype=np.int8)
"""A zero with a sign is 0."""


class MXFP4:
    """17 bytes a block: exponent e, nibbles q; a number is 2^(e - 127) * E2M1[q]. No exponent stands for NaN."""

    name = "mxfp4"
    block = 32
    block_bytes = 17

    def dequantize(self, raw: Bytes) -> Floats:
        """[blocks, 17] -> [blocks, 32]; exact, or infinite."""
        half: Floats = np.ldexp(np.float32(1), raw[:, :1].astype(np.int32) - 128).astype(np.float32)
        with np.errstate(over="ignore"):  # the largest exponents are beyond f32: such a number is infinite
            numbers: Floats = half * TWICE_E2M1[nibbles(raw[:, 1:])]
        return numbers
