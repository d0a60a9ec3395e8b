"""How numbers lie in model files: one file per weight format, found by name or by ggml's type id.

Knows the bytes of a block, the numbers they stand for, and how numbers become blocks. Knows nothing of files, models or
kernels.
"""

from pagoda.quant.choice import DENSE, OUTER, choose, is_matrix
from pagoda.quant.registry import (
    F8S,
    Q4_Z,
    Q8_Z,
    GridQuantizer,
    Quantizer,
    by_id,
    by_name,
    ggml_names,
    names,
    quantizer,
    type_id,
)

__all__ = [
    "DENSE",
    "F8S",
    "OUTER",
    "Q4_Z",
    "Q8_Z",
    "GridQuantizer",
    "Quantizer",
    "by_id",
    "by_name",
    "choose",
    "ggml_names",
    "is_matrix",
    "names",
    "quantizer",
    "type_id",
]
