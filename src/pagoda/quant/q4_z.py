"""Q4_Z32 and Q4_Z128: 4-bit integers with a zero point, as AWQ, GPTQ and compressed-tensors have them.

Our own blocks, of 32 or 128 numbers: f32 scale d, f16 shift c, sixteen bytes of nibbles q for each 32. A number is
d * (q - 8 + c), where c is 8 less the zero point, a whole number: the sum is exact.
"""

from __future__ import annotations

import numpy as np

from pagoda.backends.ops import Bytes, Floats
from pagoda.quant.blocks import halves, nibble_bytes, nibbles, singles


class Q4Z:
    """6 bytes and a half for each number."""

    def __init__(self, block: int) -> None:
        self.name = f"q4_z{block}"
        self.block = block
        self.block_bytes = 6 + block // 2

    def dequantize(self, raw: Bytes) -> Floats:
        """[blocks, block_bytes] -> [blocks, block]; rounded once, and exact if the scale was f16 or bf16."""
        integers = nibbles(raw[:, 6:].reshape(-1, 16)).reshape(len(raw), self.block).astype(np.float32)
        with np.errstate(invalid="ignore", over="ignore"):
            return singles(raw[:, :4]) * (integers - np.float32(8) + halves(raw[:, 4:6]))

    def pack(self, scales: Floats, shifts: Floats, integers: Bytes) -> Bytes:
        """Scales and shifts [blocks], integers [blocks, block] of 0 to 15 -> [blocks, block_bytes]."""
        raw = np.empty((len(integers), self.block_bytes), np.uint8)
        raw[:, :4] = scales.astype("<f4")[:, None].view(np.uint8)
        raw[:, 4:6] = shifts.astype("<f2")[:, None].view(np.uint8)
        raw[:, 6:] = nibble_bytes(integers.reshape(-1, 32)).reshape(len(integers), -1)
        return raw
