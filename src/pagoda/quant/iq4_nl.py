"""IQ4_NL: 32 numbers as f16 scale d and nibbles q; a number is d * table[q], the table being uneven."""

from __future__ import annotations

import numpy as np

from pagoda.backends.ops import Bytes, Floats
from pagoda.quant.blocks import UNEVEN, halves, nibbles


class IQ4_NL:
    """18 bytes a block: scale, nibbles."""

    name = "iq4_nl"
    block = 32
    block_bytes = 18

    def dequantize(self, raw: Bytes) -> Floats:
        """[blocks, 18] -> [blocks, 32]; exact: the product of 11 and 7 bits fits f32."""
        with np.errstate(invalid="ignore"):
            return halves(raw[:, :2]) * UNEVEN[nibbles(raw[:, 2:])]
