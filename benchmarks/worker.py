"""What the workers of `table.py` have in common: the line protocol, and what one measurement of decoding is.

A worker loads one model and prints {"ready": {name: version}}. Then, for each line {"cell": "decode16", "batches":
[1, 8]} on standard input, it answers in one line, seconds per token by name: {"decode16b1": 0.004, "decode16b8":
0.001}; for {"cell": "prefill512"}, {"prefill512": 0.002}. On a failure, {"error": text}. `prefillN` is a fresh prompt
of N random tokens to its first token; `decodeCbB` is B sequences, each with C tokens of its own, one greedy token
each in step. Needs nothing but Python, as each engine has an environment of its own.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable
from typing import IO

STEPS = 24
"""Tokens each sequence makes in one measurement of decoding."""
WINDOW = 4
"""Consecutive steps whose mean time is one measurement; the best of them counts."""

Prefill = Callable[[int], float]
"""Tokens -> seconds of one fresh prompt."""
Decode = Callable[[int, int], float]
"""Context and batch -> seconds of one step."""


def private_stdout() -> IO[str]:
    """Standard output for the protocol alone: what an engine prints goes to standard error."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    return out


def best_window(seconds: list[float]) -> float:
    """Least mean of `WINDOW` consecutive steps."""
    return min(sum(seconds[i : i + WINDOW]) / WINDOW for i in range(len(seconds) - WINDOW + 1))


def answer(asked: dict[str, object], prefill: Prefill, decode: Decode) -> dict[str, float]:
    """One cell, measured once."""
    match = re.fullmatch(r"(prefill|decode)(\d+)", str(asked.get("cell")))
    if not match:
        raise ValueError(f"no cell is called {asked.get('cell')!r}")
    kind, size = match[1], int(match[2])
    if kind == "prefill":
        return {f"prefill{size}": min(prefill(size) for _ in range(max(1, 1024 // size))) / size}
    batches = asked.get("batches")
    if not isinstance(batches, list) or not batches:
        raise ValueError("a cell of decoding needs batches")
    return {f"decode{size}b{batch}": decode(size, batch) / batch for batch in batches}


def serve(out: IO[str], versions: dict[str, str], prefill: Prefill, decode: Decode) -> None:
    """Say that the worker is ready, and answer until standard input ends."""
    print(json.dumps({"ready": versions}), file=out, flush=True)
    for line in sys.stdin:
        try:
            result: dict[str, object] = dict(answer(json.loads(line), prefill, decode))
        except Exception as error:  # the protocol: an error is an answer
            result = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(result), file=out, flush=True)
