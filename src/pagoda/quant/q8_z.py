"""Q8_Z32 and Q8_Z128: 8-bit integers with a zero point, in our own blocks: as Q4_Z32 and Q4_Z128, for bytes.

Of 32 or 128 numbers: f32 scale d, f16 shift c, unsigned bytes q. A number is d * (q - 128 + c), where c is 128 less the
zero point, a whole number: the sum is exact.
"""

from __future__ import annotations

import numpy as np

from pagoda.backends.ops import Bytes, Floats
from pagoda.quant.blocks import halves, singles


class Q8Z:
    """6 bytes and one for each number."""

    def __init__(self, block: int) -> None:
        self.name = f"q8_z{block}"
        self.block = block
        self.block_bytes = 6 + block

    def dequantize(self, raw: Bytes) -> Floats:
        """[blocks, block_bytes] -> [blocks, block]; rounded once, and exact if the scale was f16 or bf16."""
        with np.errstate(invalid="ignore", over="ignore"):
            return singles(raw[:, :4]) * (raw[:, 6:].astype(np.float32) - np.float32(128) + halves(raw[:, 4:6]))

    def pack(self, scales: Floats, shifts: Floats, integers: Bytes) -> Bytes:
        """Scales and shifts [blocks], integers [blocks, block] -> [blocks, block_bytes]."""
        raw = np.empty((len(integers), self.block_bytes), np.uint8)
        raw[:, :4] = scales.astype("<f4")[:, None].view(np.uint8)
        raw[:, 4:6] = shifts.astype("<f2")[:, None].view(np.uint8)
        raw[:, 6:] = integers
        return raw
