"""`pagoda quantize`: a model as a GGUF file with smaller weights.

    quantize(model, out, Options("q4_0", method="gptq")) -> Report

Knows how tensors are brought into fewer bits and in which order; the formats themselves are in `quant`.
"""

from pagoda.quantize.run import METHODS, Options, Report, TensorReport, quantize

__all__ = ["METHODS", "Options", "Report", "TensorReport", "quantize"]
