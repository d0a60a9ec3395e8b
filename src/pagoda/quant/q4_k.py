"""Q4_K: 256 numbers as f16 d and m, eight 6-bit scales and minima, nibbles q; a number is d * scale * q - m * min."""

from __future__ import annotations

import numpy as np

from pagoda.backends.ops import Bytes, Floats
from pagoda.quant.blocks import finite, half_bytes, halves, inverse, nibble_bytes, nibbles, six_bit_bytes, six_bit_pairs


class Q4_K:
    """144 bytes a block: d, m, scales and minima, nibbles. Scale j serves numbers 32 * j to 32 * j + 31."""

    name = "q4_k"
    block = 256
    block_bytes = 144

    def dequantize(self, raw: Bytes) -> Floats:
        """[blocks, 144] -> [blocks, 256]; the products are exact and the difference is rounded once."""
        scales, minima = six_bit_pairs(raw[:, 4:16])
        integers = nibbles(raw[:, 16:].reshape(-1, 32)).reshape(-1, 8, 32)
        with np.errstate(invalid="ignore"):
            factors, offsets = halves(raw[:, :2]) * scales, halves(raw[:, 2:4]) * minima
            return (factors[..., None] * integers - offsets[..., None]).reshape(-1, 256)

    def quantize(self, floats: Floats) -> Bytes:
        """[blocks, 256] -> [blocks, 144]: a line through each 32 numbers, least squares; then scales and minima, as
        multiples of the block's own, are rounded to 6 bits, and the numbers to what is nearest with those."""
        lines = finite(floats).reshape(-1, 8, 32)
        scales, minima = _lines(lines)
        d, m = (half_bytes(x.max(axis=1, keepdims=True) / np.float32(63)) for x in (scales, minima))
        factors, offsets = (
            np.minimum(np.rint(x * inverse(halves(raw))), 63).astype(np.uint8) for x, raw in ((scales, d), (minima, m))
        )
        steps = (halves(d) * factors)[..., None]
        integers = np.clip(np.rint((lines + (halves(m) * offsets)[..., None]) * inverse(steps)), 0, 15).astype(np.uint8)
        packed = nibble_bytes(integers.reshape(-1, 64)).reshape(-1, 128)
        return np.concatenate([d, m, six_bit_bytes(factors, offsets), packed], axis=1)


def _lines(x: Floats) -> tuple[Floats, Floats]:
    """Of each 32 numbers a scale and a minimum, neither negative: x is about scale * q - minimum with q from 0 to 15.

    From the ends inwards: the scale that takes the lowest number to 0 and the highest to 15, then twice the line of
    least squares through the q that this gives, where it errs less.
    """
    low, high = np.minimum(x.min(axis=-1), 0), np.maximum(x.max(axis=-1), 0)
    scale, minimum = (high - low) / np.float32(15), -low
    error = _error(x, scale, minimum)
    for _ in range(2):
        q = _nearest(x, scale, minimum)
        mean_q, mean_x = q.mean(axis=-1), x.mean(axis=-1)
        spread = ((q - mean_q[..., None]) ** 2).sum(axis=-1)
        slope = ((q - mean_q[..., None]) * x).sum(axis=-1) * inverse(spread)
        offset = slope * mean_q - mean_x
        better = (slope > 0) & (offset >= 0)
        slope, offset = np.where(better, slope, scale), np.where(better, offset, minimum)
        found = _error(x, slope, offset)
        better = found < error
        scale, minimum = np.where(better, slope, scale), np.where(better, offset, minimum)
        error = np.minimum(found, error)
    return scale, minimum


def _nearest(x: Floats, scale: Floats, minimum: Floats) -> Floats:
    q: Floats = np.clip(np.rint((x + minimum[..., None]) * inverse(scale)[..., None]), 0, 15)
    return q


def _error(x: Floats, scale: Floats, minimum: Floats) -> Floats:
    back: Floats = _nearest(x, scale, minimum) * scale[..., None] - minimum[..., None]
    squares: Floats = ((back - x) ** 2).sum(axis=-1)
    return squares
