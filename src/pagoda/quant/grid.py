"""The numbers that blocks can hold once their scales are chosen, and how scales are chosen.

A block's numbers lie in groups of equal length; number i of group j is steps[j] * q + offsets[j] with an integer q from
`low` to `high`. Knows nothing of bytes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pagoda.backends.ops import Bytes, Floats
from pagoda.quant.blocks import inverse

Integers = npt.NDArray[np.int8]


@dataclass(frozen=True, slots=True, eq=False)
class Grid:
    """Of some blocks."""

    steps: Floats
    """[blocks, groups]; what the stored scales stand for."""
    offsets: Floats
    """[blocks, groups]"""
    low: int
    high: int
    scales: tuple[Bytes, ...]
    """As they are stored: each [blocks, n] bytes."""

    def nearest(self, floats: Floats) -> Integers:
        """The integers whose numbers are nearest: [blocks, block] -> [blocks, block]."""
        lines = floats.reshape(*self.steps.shape, -1)
        q = np.rint((lines - self.offsets[..., None]) * inverse(self.steps)[..., None])
        found: Integers = np.clip(q, self.low, self.high).astype(np.int8).reshape(floats.shape)
        return found

    def numbers(self, integers: Integers) -> Floats:
        """What integers stand for: [blocks, block] -> [blocks, block]."""
        lines = integers.reshape(*self.steps.shape, -1)
        found: Floats = (lines * self.steps[..., None] + self.offsets[..., None]).reshape(integers.shape)
        return found


def lines(x: Floats, top: int, weights: Floats | None = None) -> tuple[Floats, Floats]:
    """A scale and a minimum for each group, neither negative: x is about scale * q - minimum, q from 0 to `top`.

    From the ends inwards: the scale that takes the lowest number to 0 and the highest to `top`, then twice the line of
    least squares through the q that this gives, where it errs less. x is [.., n]; `weights`, which say how much an
    error counts, of the same shape.
    """
    w = np.float32(1) if weights is None else weights
    total = np.float32(x.shape[-1]) if weights is None else weights.sum(axis=-1)
    low, high = np.minimum(x.min(axis=-1), 0), np.maximum(x.max(axis=-1), 0)
    scale, minimum = (high - low) / np.float32(top), -low
    error = _line_error(x, scale, minimum, top, w)
    for _ in range(2):
        q = _line_nearest(x, scale, minimum, top)
        mean_q, mean_x = (w * q).sum(axis=-1) / total, (w * x).sum(axis=-1) / total
        apart = q - mean_q[..., None]
        slope = (w * apart * x).sum(axis=-1) * inverse((w * apart**2).sum(axis=-1))
        offset = slope * mean_q - mean_x
        better = (slope > 0) & (offset >= 0)
        slope, offset = np.where(better, slope, scale), np.where(better, offset, minimum)
        found = _line_error(x, slope, offset, top, w)
        better = found < error
        scale, minimum = np.where(better, slope, scale), np.where(better, offset, minimum)
        error = np.minimum(found, error)
    return scale, minimum


def _line_nearest(x: Floats, scale: Floats, minimum: Floats, top: int) -> Floats:
    q: Floats = np.clip(np.rint((x + minimum[..., None]) * inverse(scale)[..., None]), 0, top)
    return q


def _line_error(x: Floats, scale: Floats, minimum: Floats, top: int, w: Floats | np.float32) -> Floats:
    back: Floats = _line_nearest(x, scale, minimum, top) * scale[..., None] - minimum[..., None]
    squares: Floats = (w * (back - x) ** 2).sum(axis=-1)
    return squares


_SHRINK = np.linspace(1.25, 0.7, 12, dtype=np.float32)
"""Tried of the scale that takes the number of largest magnitude to the grid's end."""


def slopes(x: Floats, low: int, weights: Floats | None = None) -> Floats:
    """A scale, of either sign, for each group: x is about scale * q, q from `low` = -n to n - 1.

    The number of largest magnitude is taken to `low`, and to a little more or less; of these scales and the least
    squares through what each gives, the one that errs least. x is [.., n]; `weights` of the same shape.
    """
    w = np.float32(1) if weights is None else weights
    largest = np.take_along_axis(x, np.abs(x).argmax(axis=-1, keepdims=True), axis=-1)[..., 0]
    first = largest / np.float32(low)
    best, error = first, _slope_error(x, first, low, w)
    for factor in _SHRINK:
        q = _slope_nearest(x, first * factor, low)
        fitted = (w * q * x).sum(axis=-1) * inverse((w * q * q).sum(axis=-1))
        found = _slope_error(x, fitted, low, w)
        best, error = np.where(found < error, fitted, best), np.minimum(found, error)
    return best


def _slope_nearest(x: Floats, scale: Floats, low: int) -> Floats:
    q: Floats = np.clip(np.rint(x * inverse(scale)[..., None]), low, -low - 1)
    return q


def _slope_error(x: Floats, scale: Floats, low: int, w: Floats | np.float32) -> Floats:
    squares: Floats = (w * (_slope_nearest(x, scale, low) * scale[..., None] - x) ** 2).sum(axis=-1)
    return squares
