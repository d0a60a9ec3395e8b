"""What is kept of the inputs that a matrix reads: for GPTQ all products of two of them, for AWQ sizes and samples."""

from __future__ import annotations

from collections.abc import Callable
from typing import Self

import numpy as np

from pagoda.backends.ops import Floats
from pagoda.quantize.awq import SAMPLES

PER_SEQUENCE = 64
"""Rows of each sequence that are kept as samples, evenly apart."""


class Squares:
    """The sum of x x^T."""

    def __init__(self, width: int) -> None:
        self.sums: Floats = np.zeros((width, width), np.float32)

    def add(self, x: Floats) -> None:
        """Some more inputs, [rows, width]."""
        self.sums += x.T @ x

    @classmethod
    def collect(cls, into: dict[str, Self]) -> Callable[[str, Floats], None]:
        """What adds the inputs of each site."""
        return lambda site, x: into.setdefault(site, cls(x.shape[1])).add(x)


class Moments:
    """Means of |x| and x^2 of each channel, and some inputs as they are."""

    def __init__(self, width: int) -> None:
        self._count = 0
        self._absolute = np.zeros(width, np.float64)
        self._squares = np.zeros(width, np.float64)
        self._samples: list[Floats] = []

    def add(self, x: Floats) -> None:
        """Some more inputs, [rows, width]."""
        self._count += len(x)
        self._absolute += np.abs(x).sum(axis=0, dtype=np.float64)
        self._squares += np.square(x, dtype=np.float64).sum(axis=0)
        if sum(map(len, self._samples)) < SAMPLES:
            self._samples.append(x[:: max(1, len(x) // PER_SEQUENCE)].copy())

    @property
    def magnitudes(self) -> Floats:
        """[width] means of |x|."""
        return (self._absolute / self._count).astype(np.float32)

    @property
    def squares(self) -> Floats:
        """[width] means of x^2."""
        return (self._squares / self._count).astype(np.float32)

    @property
    def samples(self) -> Floats:
        """[rows, width]"""
        return np.concatenate(self._samples)

    @classmethod
    def collect(cls, into: dict[str, Self]) -> Callable[[str, Floats], None]:
        """What adds the inputs of each site."""
        return lambda site, x: into.setdefault(site, cls(x.shape[1])).add(x)
