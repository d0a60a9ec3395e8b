"""Random operations on the cache against brute force (a vocabulary of 2, pages of 2): prints what was met.

PYTHONPATH=src:tests python -m cache.soak [operations] [seed]
"""

from __future__ import annotations

import json
import random
import sys
from collections import Counter

from cache.model import Model, step

SHAPES = (
    ((12,), 2, 4),
    ((24, 16), 2, 6, (None, 5)),
    ((7, 9), 2, 2),
    ((40, 14, 20), 2, 8, (None, 1, 9)),
    ((20,), 2, 8),
    ((30, 12, 30), 4, 8, (None, 3, None)),
    ((40,), 2, 20),
    ((60, 24), 1, 12, (None, 6)),
    ((9,), 4, 8),
    ((12, 12), 4, 8, (None, 4)),
    ((30,), 1, 6),
)
"""Pages of each group, tokens of a page, tokens reserved beside pins, windows."""
LIFE = 2000
"""Most operations on one cache before the next begins: the model's memory of what was evicted only grows."""


def soak(operations: int, seed: int) -> Counter[str]:
    """What was met, and how often, over all shapes."""
    generator, met = random.Random(seed), Counter[str]()
    life = min(LIFE, -(-operations // len(SHAPES)))
    for number, begin in enumerate(range(0, operations, life)):
        model = Model(*SHAPES[number % len(SHAPES)])
        for _ in range(min(life, operations - begin)):
            step(model, generator.randint)
        met.update({str(name): count for name, count in model.counts.items()})
    return met


def main(operations: int = 100_000, seed: int = 0) -> None:
    print(json.dumps({"operations": operations, "seed": seed, "met": dict(soak(operations, seed))}))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
