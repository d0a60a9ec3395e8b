"""Activation-aware scaling: AWQ (Lin et al. 2023, "AWQ: Activation-aware Weight Quantization for LLM Compression and
Acceleration", section 3.2).

Input channels of large activations are scaled up in the matrices that read them, so that rounding does less harm there,
and down where they are made: in a norm's weights, or in the rows of the matrix before. That changes no output.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from pagoda.backends.ops import Floats
from pagoda.quantize.rows import row_slices

STEPS = 20
"""Exponents tried, from 0 (nothing is scaled) on."""
SAMPLES = 512
"""Rows of activations on which scales are tried."""
ROWS = 512
"""Outputs of each matrix by which scales are judged, about, evenly apart."""

Rounding = Callable[[Floats], Floats]
"""A matrix [n, k] -> what is left of it once it is quantised."""


def search(
    magnitudes: Floats,
    samples: Floats,
    matrices: Sequence[Floats],
    rounding: Sequence[Rounding],
    repeats: int,
    size: int,
) -> Floats | None:
    """Scales for input channels that change the matrices' outputs least, when these are quantised.

    Scales are magnitude^a, normalised (equation 5); a is searched for from 0 to 1.

    Args:
        magnitudes: [k] mean absolute activation of each channel.
        samples: [rows, k] activations.
        matrices: [n, k] each.
        rounding: of each matrix.
        repeats, size: channels lie in runs of `size`, and `repeats` runs in a row must share their scales (heads
            that read one key-value head).

    Returns:
        [k], or None if no scaling is best.
    """
    matrices = [w[:: max(1, len(w) // ROWS)] for w in matrices]
    shared = np.broadcast_to(_shared(magnitudes, repeats, size), magnitudes.shape)
    best, least = None, _loss(None, samples, matrices, rounding)
    for i in range(1, STEPS):
        scales = np.maximum(shared, np.float32(1e-4) * shared.max()) ** np.float32(i / STEPS)
        scales /= np.sqrt(scales.max() * scales.min())
        loss = _loss(scales, samples, matrices, rounding)
        if loss < least:
            best, least = scales, loss
    return best


def _shared(x: Floats, repeats: int, size: int) -> Floats:
    runs = x.reshape(-1, repeats, size)
    means: Floats = np.broadcast_to(runs.mean(axis=1, keepdims=True), runs.shape).reshape(-1)
    return means


def _loss(scales: Floats | None, samples: Floats, matrices: Sequence[Floats], rounding: Sequence[Rounding]) -> float:
    """Sum of squared differences of outputs."""
    total = 0.0
    for matrix, round_ in zip(matrices, rounding, strict=True):
        for here in row_slices(*matrix.shape):
            w = matrix[here]
            became = round_(w) if scales is None else round_(w * scales) / scales
            total += float(np.square(samples @ (became - w).T, dtype=np.float64).sum())
    return total


def one_of_repeats(scales: Floats, repeats: int, size: int) -> Floats:
    """Of scales that runs share, those of one: [k] -> [k / repeats]."""
    found: Floats = np.ascontiguousarray(scales.reshape(-1, repeats, size)[:, 0]).reshape(-1)
    return found
