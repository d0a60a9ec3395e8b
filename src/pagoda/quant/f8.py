"""F8_E4M3 and F8_E5M2: 8-bit floats (Micikevicius et al. 2022, "FP8 Formats for Deep Learning") with scales.

Our own blocks of 32 numbers: f32 scale d, 32 bytes. E4M3 is the variant without infinities that checkpoints have. The
codes for NaN and infinity count as numbers here, as in the kernels: whoever packs must refuse them (`is_number`).
"""

from __future__ import annotations

import numpy as np

from pagoda.backends.ops import Bytes, Floats
from pagoda.quant.blocks import singles


class F8:
    """36 bytes a block: scale, numbers."""

    block = 32
    block_bytes = 36

    def __init__(self, name: str, mantissa: int) -> None:
        self.name = name
        self._largest = {3: 0x7E, 2: 0x7B}[mantissa]
        bits = np.arange(256, dtype=np.int32)
        exponents, fractions = bits >> mantissa & (0x7F >> mantissa), bits & ((1 << mantissa) - 1)
        bias = (0x7F >> mantissa) // 2
        whole = np.where(exponents > 0, fractions + (1 << mantissa), fractions)
        magnitudes = np.ldexp(whole.astype(np.float32), np.maximum(exponents, 1) - bias - mantissa)
        self._numbers = np.where(bits > 127, -magnitudes, magnitudes).astype(np.float32)

    def is_number(self, raw: Bytes) -> bool:
        """Whether none of these bytes stands for NaN or infinity."""
        return bool(((raw & 0x7F) <= self._largest).all())

    def dequantize(self, raw: Bytes) -> Floats:
        """[blocks, 36] -> [blocks, 32]; rounded once, and exact if the scale has 20 bits or fewer."""
        with np.errstate(invalid="ignore", over="ignore"):
            numbers: Floats = singles(raw[:, :4]) * self._numbers[raw[:, 4:]]
        return numbers

    def pack(self, scales: Floats, numbers: Bytes) -> Bytes:
        """Scales [blocks], numbers' bytes [blocks, 32] -> [blocks, 36]."""
        return np.concatenate([scales.astype("<f4")[:, None].view(np.uint8), numbers], axis=1)
