"""What a step is made of: processor time of each kind of stage, by the native executor's own clock.

Physics: the executor notes how long every tile of work takes. With one thread nothing waits for anything, so the times
of all stages add up to the step's; what is left of the wall time are meetings and what happens before the first stage
and after the last one. Each stage counts with the least of many repeats, so a neighbour that takes the core away is not
seen. Keys and values are zeros: how long attention takes does not depend on what they are.

    PYTHONPATH=src python benchmarks/parts.py smollm2 [--kv-format int8] [--only "decode 1 at 4096"]

The last line is JSON: {step: {kind of stage: milliseconds}}.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from typing import Any

import numpy as np

from pagoda import catalog
from pagoda.backends.machine import free_memory
from pagoda.backends.ops import Draw, Step
from pagoda.llm import engine_config
from pagoda.runner.load import load_runner
from pagoda.runner.sizing import size

SLOTS = 16
STEPS = {
    "decode 1": (1, 16, 1),
    "decode 16": (16, 16, 1),
    "decode 1 at 4096": (1, 4096, 1),
    "decode 8 at 1024": (8, 1024, 1),
    "prefill 512": (1, 0, 512),
}
"""Name -> sequences, their context, and tokens that the step computes of each."""


def step_of(sequences: int, context: int, tokens: int, groups: int) -> tuple[Step, list[Draw]]:
    """A step that draws one token, the likeliest, for each sequence; the draws."""
    rows, pages = sequences * tokens, -(-(context + tokens) // SLOTS)
    ints = np.int32
    step = Step(
        np.arange(100, 100 + rows, dtype=ints),
        np.tile(np.arange(context, context + tokens, dtype=ints), sequences),
        np.repeat(np.arange(sequences, dtype=ints), tokens),
        (np.random.default_rng(0).permutation(sequences * pages).astype(ints).reshape(sequences, pages),) * groups,
        np.arange(tokens - 1, rows, tokens, dtype=ints),
        starts=tuple((s, np.zeros(1, ints)) for s in range(sequences)),
    )
    draws = [Draw(s, 0, 0, context + tokens, 0.0, 1.0, 0.0, 1.0, 0.0, 0.0, 0, -1) for s in range(sequences)]
    return step, draws


def measure(runner: Any, name: str, repeats: int) -> dict[str, float]:
    """Milliseconds of each kind of stage, of all stages, and of the whole step as it is without the clock."""
    program, kv, slots = runner._program, runner._kv, runner._slots
    step, draws = step_of(*STEPS[name], len(runner.capacity.pages))
    taken, wall = [], []
    for i in range(2 * repeats):
        program.clocked = i % 2 == 0
        pending = program.submit(kv, step, slots, draws)
        out = pending.wait()
        if program.clocked:
            taken.append(pending.times())
        else:
            wall.append(out.seconds)
    kinds: defaultdict[str, float] = defaultdict(float)
    for repeated in zip(*taken, strict=True):
        kinds[repeated[0][0]] += min(seconds for _, seconds in repeated)
    return {kind: round(1e3 * s, 3) for kind, s in {**kinds, "all": sum(kinds.values()), "step": min(wall)}.items()}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--kv-format", default="f16")
    parser.add_argument("--activations", default="int16")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=30)
    parser.add_argument("--only", action="append", choices=list(STEPS))
    given = parser.parse_args()
    config = engine_config(
        given.model,
        threads=given.threads,
        max_model_len=8192,
        kv_format=given.kv_format,
        activations=given.activations,
        kv_memory=512 << 20,
    )
    with catalog.open_model(given.model) as file:
        runner = load_runner(file, config, size(file, config, free_memory()))
    figures = {}
    for name in given.only or STEPS:
        figures[name] = measure(runner, name, given.repeats if "prefill" not in name else max(4, given.repeats // 4))
        print(f"{name:18}", "  ".join(f"{kind} {ms:.2f}" for kind, ms in figures[name].items()), flush=True)
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
