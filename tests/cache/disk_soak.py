"""100,000 random operations on the cache and its tier, with disk faults, against brute force: prints what was met.

PYTHONPATH=src:tests python -m cache.disk_soak [operations] [seed]
"""

from __future__ import annotations

import json
import logging
import os
import random
import sys
import tempfile
from collections import Counter
from pathlib import Path

from cache.disk_model import DiskModel, step

SHAPES = (
    ((12,), 2, 4),
    ((16, 11), 2, 4, (None, 5)),
    ((7, 9), 2, 2),
    ((20,), 2, 8),
    ((40, 30, 12), 2, 8, (None, 2, 7)),
    ((40,), 2, 20),
    ((9,), 4, 8),
    ((30, 20), 1, 6, (None, 6)),
    ((30,), 1, 6),
)
LIFE = 1000


def main(operations: int = 100_000, seed: int = 0) -> None:
    logging.disable(logging.ERROR)
    os.fsync = lambda _: None  # no power fails here
    generator, met = random.Random(seed), Counter[str]()
    for begin in range(0, operations, LIFE):
        with tempfile.TemporaryDirectory() as folder:
            turn = begin // LIFE
            model = DiskModel(Path(folder) / "kv", *SHAPES[turn % len(SHAPES)], files=(4, 8, 1000)[turn % 3])
            for _ in range(min(LIFE, operations - begin)):
                step(model, generator.randint)
            model.directory.close()
            met.update(model.met)
    print(json.dumps({"operations": operations, "seed": seed, "met": dict(met)}))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
