"""F16: IEEE 754 half precision, little-endian."""

from __future__ import annotations

from pagoda.backends.ops import Bytes, Floats
from pagoda.quant.blocks import half_bytes, halves


class F16:
    """2 bytes a number; a block is one number."""

    name = "f16"
    block = 1
    block_bytes = 2

    def dequantize(self, raw: Bytes) -> Floats:
        """[numbers, 2] -> [numbers, 1]; exact."""
        return halves(raw)

    def quantize(self, floats: Floats) -> Bytes:
        """[numbers, 1] -> [numbers, 2], to nearest even; too large becomes infinite."""
        return half_bytes(floats)
