"""Errors and chances, against closed forms and tables."""

from __future__ import annotations

import math
from itertools import combinations

import numpy as np
import pytest

from pagoda.gate.chance import BLOCK, chance_of_losses, chance_of_more, mean_and_error


def test_neighbours_that_are_alike_count_once() -> None:
    rng = np.random.default_rng(0)
    free = rng.standard_normal(64 * BLOCK)
    mean, error = mean_and_error(free)
    assert mean == pytest.approx(free.mean())
    assert error == pytest.approx(1 / math.sqrt(len(free)), rel=0.3)
    alike = np.repeat(rng.standard_normal(64), BLOCK)
    assert mean_and_error(alike)[1] == pytest.approx(1 / math.sqrt(64), rel=0.3), "64 observations, not 2048"


def test_few_values_are_taken_one_by_one() -> None:
    assert mean_and_error(np.array([1.0, 3.0])) == (2.0, 1.0)
    assert mean_and_error(np.array([5.0])) == (5.0, 0.0)


@pytest.mark.parametrize(
    ("lost", "won", "chance"), [(0, 0, 1), (0, 3, 1), (1, 0, 0.5), (5, 0, 1 / 32), (4, 1, 6 / 32), (8, 2, 56 / 1024)]
)
def test_losses(lost: int, won: int, chance: float) -> None:
    before = [True] * lost + [False] * won + [True, False]
    after = [False] * lost + [True] * won + [True, False]
    assert chance_of_losses(before, after) == pytest.approx(chance)


def test_more_is_counted_out() -> None:
    """All ways in which the true cases could fall to two groups."""
    for n, m, a, b in ((3, 4, 1, 3), (5, 5, 0, 4), (4, 4, 2, 2), (3, 3, 0, 0), (2, 5, 2, 5)):
        ways = list(combinations(range(n + m), a + b))
        as_many = sum(sum(at >= n for at in way) >= b for way in ways)
        before, after = ([i < count for i in range(size)] for count, size in ((a, n), (b, m)))
        assert chance_of_more(before, after) == pytest.approx(as_many / len(ways))
