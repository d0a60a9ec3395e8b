"""Rotary frequencies and their scalings, the same on every machine: powers and logarithms in decimal arithmetic, and
otherwise only operations that IEEE 754 rounds correctly; no function of the C library.

A family gives one `Rotation` for each of its tables; the backend makes the angles.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Context, Decimal

_EXACT = Context(prec=40)


@dataclass(frozen=True, slots=True)
class Rotation:
    """What one rotary table is made of."""

    frequencies: tuple[float, ...]
    """Of each pair, in radians a position."""
    adjacent: bool
    """Which elements are a pair, as `RopeTable` has it."""
    magnitude: float = 1.0
    """Cosine and sine are multiplied by it."""


def frequencies(base: float, dims: int) -> list[float]:
    """base^(-2i / dims) for i below dims / 2 (Su et al. 2021, section 3.2.2), each correctly rounded to a double."""
    log = _EXACT.ln(Decimal(base))
    return [_power(log, Decimal(-2 * i), Decimal(dims)) for i in range(dims // 2)]


def _power(log: Decimal, over: Decimal, under: Decimal) -> float:
    return float(_EXACT.exp(_EXACT.multiply(log, _EXACT.divide(over, under))))


def _log(x: float) -> float:
    return float(_EXACT.ln(Decimal(x)))


def linear(turns: Sequence[float], factor: float) -> list[float]:
    """Positions are divided by a factor (Chen et al. 2023, "Extending context window by position interpolation")."""
    return [f / factor for f in turns]


def by_factors(turns: Sequence[float], factors: Sequence[float]) -> list[float]:
    """Each frequency has a factor of its own (LongRoPE; Ding et al. 2024)."""
    return [f / factor for f, factor in zip(turns, factors, strict=True)]


def ntk_base(base: float, dims: int, factor: float) -> float:
    """The base that divides the lowest frequency by a factor and leaves the highest ("NTK-aware" scaling; Peng et al.
    2023, "YaRN", section 3.1)."""
    return base * _power(_EXACT.ln(Decimal(factor)), Decimal(dims), Decimal(dims - 2))


def dynamic_base(base: float, dims: int, factor: float, positions: int, original: int) -> float:
    """NTK-aware scaling by as much as `positions` are more than `original`; not at all if they are no more.

    Checkpoints mean the length of each text ("dynamic NTK"); but keys that were rotated for a shorter text would then
    be wrong for what follows. So it is the longest text that there is room for, the same for all.
    """
    stretch = factor * positions / original - (factor - 1)
    return ntk_base(base, dims, stretch) if positions > original else base


def llama3(turns: Sequence[float], factor: float, low: float, high: float, original: int) -> list[float]:
    """Llama 3.1's: waves longer than original / low are stretched by the factor, those shorter than original / high
    are left, and between them it is interpolated (Meta's reference code, `apply_scaling`)."""
    result = []
    for f in turns:
        rotations = original * f / (2 * math.pi)
        kept = min(max((rotations - low) / (high - low), 0.0), 1.0)
        result.append((1 - kept) * f / factor + kept * f)
    return result


def yarn(
    base: float, dims: int, factor: float, original: int, fast: float = 32.0, slow: float = 1.0, whole: bool = True
) -> list[float]:
    """YaRN (Peng et al. 2023, section 3.2): pairs that turn more than `fast` times within the original context stay,
    those that turn less than `slow` times are stretched by the factor, and between them it is interpolated by the
    pair's index, the borders rounded outwards to whole indices if `whole`.
    """

    def index(rotations: float) -> float:
        return dims * _log(original / (rotations * 2 * math.pi)) / (2 * _log(base))

    low, high = index(fast), index(slow)
    if whole:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0.0), min(high, dims - 1.0)
    high = high + 0.001 if low == high else high
    result = []
    for i, f in enumerate(frequencies(base, dims)):
        stretched = min(max((i - low) / (high - low), 0.0), 1.0)
        result.append(f / factor * stretched + f * (1 - stretched))
    return result


def yarn_magnitude(factor: float) -> float:
    """0.1 ln(factor) + 1 (section 3.4: the square root of 1/t, once for the queries and once for the keys)."""
    return 0.1 * _log(factor) + 1.0 if factor > 1 else 1.0


def long_magnitude(factor: float, original: int) -> float:
    """sqrt(1 + ln(factor) / ln(original)) (LongRoPE, as Phi-3 has it)."""
    return math.sqrt(1 + _log(factor) / _log(original)) if factor > 1 else 1.0
