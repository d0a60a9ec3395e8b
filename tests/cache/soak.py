"""100,000 random operations on the cache against brute force (a vocabulary of 2, pages of 2): prints what was met.

PYTHONPATH=src:tests python -m cache.soak [operations] [seed]
"""

from __future__ import annotations

import json
import random
import sys
from collections import Counter

from cache.model import Model, step

SHAPES = (((12,), 2, 4), ((7, 9), 2, 2), ((20,), 2, 8), ((40,), 2, 20), ((9,), 4, 8), ((30,), 1, 6))
LIFE = 2000
"""Operations on one cache before the next begins: the model's memory of what was evicted only grows."""


def main(operations: int = 100_000, seed: int = 0) -> None:
    generator, met = random.Random(seed), Counter[str]()
    for begin in range(0, operations, LIFE):
        pages, page_size, reserve = SHAPES[begin // LIFE % len(SHAPES)]
        model = Model(pages, page_size, reserve)
        for _ in range(min(LIFE, operations - begin)):
            step(model, generator.randint)
        met.update({str(name): count for name, count in model.counts.items()})
    print(json.dumps({"operations": operations, "seed": seed, "met": dict(met)}))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
