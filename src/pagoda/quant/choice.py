"""Which format each tensor of a model gets when the model is quantised.

Vectors, biases and routers stay: they are small, and much hangs on each number. The embedding and the vocabulary
projection get a finer format than the layers: each token hangs on a few of their rows. Rows that are no whole blocks of
what is wanted get q8_0, and if they are no whole blocks of that either, they stay.
"""

from __future__ import annotations

from pagoda.quant.registry import Quantizer, quantizer

DENSE = ("f32", "f16", "bf16")
OUTER = ("token_embd.weight", "output.weight")
FALLBACK = "q8_0"
_KEPT = (".bias", "ffn_gate_inp.weight")
"""Ends of names of what has rows and columns and is no matrix of the kind that is worth it."""


def is_matrix(name: str, shape: tuple[int, ...]) -> bool:
    """Whether a tensor is one that quantising is for."""
    return len(shape) > 1 and not name.endswith(_KEPT)


def choose(name: str, shape: tuple[int, ...], format: str, outer: str = FALLBACK) -> Quantizer | None:
    """What a tensor becomes; None if it stays as it is.

    Args:
        name, shape: of the tensor, by GGUF's names.
        format: what matrices of layers should become.
        outer: what the embedding and the vocabulary projection should become.
    """
    if not is_matrix(name, shape):
        return None
    wanted = outer if name in OUTER else format
    candidates = (quantizer(each) for each in dict.fromkeys((wanted, FALLBACK)))
    return next((each for each in candidates if shape[-1] % each.block == 0), None)
