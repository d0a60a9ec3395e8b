"""Error feedback: GPTQ (Frantar et al. 2022, "GPTQ: Accurate Post-Training Quantization for Generative Pre-trained
Transformers", algorithm 1), within the blocks of GGUF's formats.

A matrix is quantised column by column; what rounding a column does to the outputs is made good, as far as it can be, by
the columns that follow. Scales of a block are chosen when its first column is reached, from the numbers as they are by
then. Columns stay in their order: a file has no place for another.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from pagoda.backends.ops import Bytes, Floats
from pagoda.quant import GridQuantizer

Doubles = npt.NDArray[np.float64]
DAMPING = 0.01
"""Added to the Hessian's diagonal, of its mean (section 3.3, step 3)."""
SMALL = 64
"""Columns of a triangle that is inverted as any matrix is."""


def factor(hessian: Floats | Doubles) -> Floats:
    """The upper Cholesky factor of the damped Hessian's inverse: what algorithm 1 reads.

    Args:
        hessian: [k, k], the sum of x x^T over inputs x; a column that is always 0 counts as one of mean size.
    """
    damped = hessian.astype(np.float64)
    diagonal = np.einsum("ii->i", damped)
    mean = float(diagonal.mean()) or 1.0
    diagonal[diagonal == 0] = mean
    diagonal += DAMPING * mean
    # With rows and columns reversed, H = R R^T has an upper R, and then the inverse is U^T U with U = R^-1.
    reversed_factor = np.linalg.cholesky(damped[::-1, ::-1])
    return _inverse(np.ascontiguousarray(reversed_factor[::-1, ::-1])).astype(np.float32)


def _inverse(upper: Doubles) -> Doubles:
    """Of an upper triangular matrix, half by half."""
    k = len(upper)
    if k <= SMALL:
        return np.triu(np.linalg.inv(upper))
    half = k // 2
    result = np.zeros_like(upper)
    first, last = _inverse(upper[:half, :half]), _inverse(upper[half:, half:])
    result[:half, :half], result[half:, half:] = first, last
    result[:half, half:] = -(first @ upper[:half, half:]) @ last
    return result


def quantize_columns(weights: Floats, upper: Floats, stored: GridQuantizer) -> Bytes:
    """A matrix in a format, errors fed back.

    Args:
        weights: [n, k].
        upper: [k, k], of `factor`.
        stored: the format.

    Returns:
        [n, bytes of a row].
    """
    n, k = weights.shape
    block = stored.block
    left = np.ascontiguousarray(weights.T)  # a column is a row here: they are gone through one by one
    importance = (1 / np.diag(upper).astype(np.float64) ** 2).astype(np.float32)
    rows = []
    for begin in range(0, k, block):
        here = slice(begin, begin + block)
        some, local = left[here], upper[here, here]
        counts = np.broadcast_to(importance[here] / importance[here].mean(), (n, block))
        grid = stored.grid(np.ascontiguousarray(some.T), counts)
        groups = grid.steps.shape[1]
        steps, offsets = (np.repeat(x.T, block // groups, axis=0) for x in (grid.steps, grid.offsets))
        with np.errstate(divide="ignore"):
            inverse = np.where(steps == 0, np.float32(0), np.float32(1) / steps)
        integers, errors = np.empty((block, n), np.int8), np.empty((block, n), np.float32)
        for j in range(block):
            q = np.clip(np.rint((some[j] - offsets[j]) * inverse[j]), grid.low, grid.high)
            integers[j] = q
            errors[j] = (some[j] - (q * steps[j] + offsets[j])) / local[j, j]
            some[j + 1 :] -= local[j, j + 1 :, None] * errors[j]
        left[begin + block :] -= upper[here, begin + block :].T @ errors
        rows.append(stored.pack(grid, np.ascontiguousarray(integers.T)))
    return np.concatenate(rows, axis=1)
