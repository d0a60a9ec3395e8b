"""How sure a figure is: errors of means over text, and how likely a difference of counts is by chance.

Knows only numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import comb, sqrt

import numpy as np
import numpy.typing as npt

BLOCK = 32
"""Neighbouring tokens are alike: so many together count as one observation."""
SURE = 1.645
"""Standard errors to the bound that holds 95 % of the time, on one side."""
UNLIKELY = 0.05
"""A difference rarer than this by chance is taken for real."""


def mean_and_error(values: npt.NDArray[np.float64]) -> tuple[float, float]:
    """The mean and its standard error, by batch means (Conway 1963): of blocks of `BLOCK`, the last one dropped if it
    is not whole; of single values if there are not four blocks.
    """
    blocks = len(values) // BLOCK
    parts = values[: blocks * BLOCK].reshape(blocks, BLOCK).mean(1) if blocks >= 4 else values
    error = float(parts.std(ddof=1)) / sqrt(len(parts)) if len(parts) > 1 else 0.0
    return float(values.mean()), error


def chance_of_losses(before: Sequence[bool], after: Sequence[bool]) -> float:
    """That of the cases which changed so many or more were lost, if each way were as likely.

    The exact sign test on pairs (McNemar 1947), on one side.
    """
    lost = sum(a and not b for a, b in zip(before, after, strict=True))
    won = sum(b and not a for a, b in zip(before, after, strict=True))
    changed = lost + won
    ways: int = sum(comb(changed, k) for k in range(lost, changed + 1))
    return ways / 2.0**changed


def chance_of_more(before: Sequence[bool], after: Sequence[bool]) -> float:
    """That so many or more of all that are true fall to `after`, if they fall anywhere: Fisher's exact test, on one
    side.
    """
    true, count = sum(before) + sum(after), len(after)
    whole = comb(len(before) + count, true)
    ways = (comb(count, k) * comb(len(before), true - k) for k in range(sum(after), min(count, true) + 1))
    return sum(ways) / whole
