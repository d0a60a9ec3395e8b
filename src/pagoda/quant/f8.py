"""F8_E4M3 and F8_E5M2: 8-bit floats (Micikevicius et al. 2022, "FP8 Formats for Deep Learning") with scales.

Our own blocks of 32 numbers: f32 scale d, 32 bytes. E4M3 is the variant without infinities that checkpoints have; its
NaN reads as 480 here, as in the kernels: whoever packs must refuse it (`is_number`).
"""

from __future__ import annotations

import numpy as np

from pagoda.backends.ops import Bytes, Floats
from pagoda.quant.blocks import singles


class F8:
    """36 bytes a block: scale, numbers."""

    block = 32
    block_bytes = 36

    def __init__(self, name: str, largest: int) -> None:
        self.name = name
        self._largest = largest
        codes = np.arange(256, dtype=np.uint16)
        if name == "f8_e5m2":  # the upper half of an f16
            self._numbers = (codes << 8).view(np.float16).astype(np.float32)
        else:  # in an f16's place, its exponent is 8 too low
            self._numbers = ((codes & 128) << 8 | (codes & 127) << 7).view(np.float16).astype(np.float32) * 256

    def is_number(self, raw: Bytes) -> bool:
        """Whether none of these bytes stands for NaN or infinity."""
        return bool(((raw & 0x7F) <= self._largest).all())

    def dequantize(self, raw: Bytes) -> Floats:
        """[blocks, 36] -> [blocks, 32]; rounded once, and exact if the scale was f16 or bf16."""
        with np.errstate(invalid="ignore", over="ignore"):
            numbers: Floats = singles(raw[:, :4]) * self._numbers[raw[:, 4:]]
        return numbers

    def pack(self, scales: Floats, numbers: Bytes) -> Bytes:
        """Scales [blocks], numbers' bytes [blocks, 32] -> [blocks, 36]."""
        return np.concatenate([scales.astype("<f4")[:, None].view(np.uint8), numbers], axis=1)
