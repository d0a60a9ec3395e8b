"""Covering arrays: few cases in which every two values of two different axes meet.

Greedy, after Cohen et al. 1997, "The AETG system": each new case begins with a pair that is still missing, and each
other axis takes the value that brings most missing pairs. Faults of configuration nearly always need two values
(Kuhn et al. 2004, "Software fault interactions").
"""

from __future__ import annotations

import random
from collections.abc import Hashable, Iterator, Mapping, Sequence
from itertools import combinations, product
from typing import Any

Pair = tuple[tuple[str, Hashable], tuple[str, Hashable]]
"""Two axes with a value each, in the order of the axes."""
TRIES = 12
"""Candidates for each case, of which the best is taken."""


def pairs_of(case: Mapping[str, Hashable], axes: Sequence[str]) -> Iterator[Pair]:
    """All pairs of one case."""
    for a, b in combinations(axes, 2):
        yield (a, case[a]), (b, case[b])


def all_pairs(axes: Mapping[str, Sequence[Any]], seed: int = 0) -> list[dict[str, Any]]:
    """Cases {axis: value} that cover all pairs; the same for the same arguments."""
    rng = random.Random(seed)
    names = list(axes)
    # A dictionary, not a set: its order does not change from run to run.
    missing: dict[Pair, None] = dict.fromkeys(
        ((a, x), (b, y)) for a, b in combinations(names, 2) for x, y in product(axes[a], axes[b])
    )
    cases = []
    while missing:
        candidates = [_candidate(axes, names, missing, rng) for _ in range(TRIES)]
        best = max(candidates, key=lambda case: sum(pair in missing for pair in pairs_of(case, names)))
        for pair in pairs_of(best, names):
            missing.pop(pair, None)
        cases.append(best)
    return cases


def _candidate(
    axes: Mapping[str, Sequence[Any]], names: Sequence[str], missing: Mapping[Pair, None], rng: random.Random
) -> dict[str, Any]:
    case = dict(rng.choice(list(missing)))
    rest = [name for name in names if name not in case]
    rng.shuffle(rest)
    for name in rest:
        values = list(axes[name])
        rng.shuffle(values)
        case[name] = max(values, key=lambda value: _brings(case, name, value, names, missing))
    return {name: case[name] for name in names}


def _brings(
    case: Mapping[str, Any], name: str, value: Hashable, names: Sequence[str], missing: Mapping[Pair, None]
) -> int:
    at = names.index(name)
    return sum(
        (((other, case[other]), (name, value)) if names.index(other) < at else ((name, value), (other, case[other])))
        in missing
        for other in case
    )
