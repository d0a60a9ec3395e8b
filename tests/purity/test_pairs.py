"""The generator of covering arrays covers, repeats itself, and stays small."""

from __future__ import annotations

from itertools import combinations, product

import pytest

from .axes import AXES
from .pairs import all_pairs, pairs_of


@pytest.mark.parametrize(
    "axes",
    [
        AXES,
        {"a": (1, 2), "b": (1, 2)},
        {"a": (1,), "b": (1, 2, 3), "c": ("x", "y")},
        {"a": range(5), "b": (None, False)},
    ],
)
def test_all_pairs_are_covered(axes: dict) -> None:
    cases = all_pairs(axes)
    names = list(axes)
    covered = {pair for case in cases for pair in pairs_of(case, names)}
    wanted = {((a, x), (b, y)) for a, b in combinations(names, 2) for x, y in product(axes[a], axes[b])}
    assert covered == wanted
    assert all(list(case) == names for case in cases)


def test_it_repeats_itself_and_stays_small() -> None:
    assert all_pairs(AXES) == all_pairs(AXES)
    assert all_pairs(AXES, 1) != all_pairs(AXES)
    first, second = sorted(map(len, AXES.values()))[-2:]
    assert len(all_pairs(AXES)) < 1.5 * first * second
