"""How numbers lie in model files: one file per weight format, found by name or by ggml's type id.

Knows the bytes of a block and the numbers they stand for. Knows nothing of files, models or kernels.
"""

from pagoda.quant.registry import F8S, Q4_Z, Q8_Z, Quantizer, by_id, by_name, ggml_names, names, quantizer, type_id

__all__ = ["F8S", "Q4_Z", "Q8_Z", "Quantizer", "by_id", "by_name", "ggml_names", "names", "quantizer", "type_id"]
