"""A trace to try things with: arrivals in waves, lengths as real ones are, some prompts with a shared beginning.

    PYTHONPATH=src python benchmarks/make_trace.py trace.jsonl --requests 500
    pagoda bench simulate trace.jsonl --ttft-target 2000

A name that ends in `.jsonl` gets Mooncake's format, with blocks of 512 tokens that prompts share; any other one CSV.
"""

from __future__ import annotations

import argparse
import json
import math
import random
from collections.abc import Iterator
from pathlib import Path

BLOCK = 512


def lines(name: str, requests: int, rate: float, prompt: float, output: float, seed: int) -> Iterator[str]:
    """The trace's lines. `prompt` and `output` are the lengths' medians, `rate` the mean of arrivals a second."""
    draw, now, fresh = random.Random(seed), 0.0, 100
    if not name.endswith(".jsonl"):
        yield "arrival_s,prompt_tokens,output_tokens"
    for _ in range(requests):
        now += draw.expovariate(rate * (1 + 0.8 * math.sin(now / 30)))
        tokens = max(1, round(draw.lognormvariate(math.log(prompt), 0.8)))
        answer = max(1, round(draw.lognormvariate(math.log(output), 0.7)))
        if not name.endswith(".jsonl"):
            yield f"{now:.3f},{tokens},{answer}"
            continue
        blocks = -(-tokens // BLOCK)
        shared = draw.randint(0, blocks) if draw.random() < 0.5 else 0
        kind = draw.randint(0, 9)
        ids = [kind * 10 + i for i in range(min(shared, 10))]
        ids += range(fresh, fresh + blocks - len(ids))
        fresh += blocks
        yield json.dumps(
            {"timestamp": round(1000 * now), "input_length": tokens, "output_length": answer, "hash_ids": ids}
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path", type=Path)
    parser.add_argument("--requests", type=int, default=500)
    parser.add_argument("--rate", type=float, default=1.0, help="arrivals a second")
    parser.add_argument("--prompt", type=float, default=300.0, help="median tokens")
    parser.add_argument("--output", type=float, default=60.0, help="median tokens")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    found = lines(options.path.name, options.requests, options.rate, options.prompt, options.output, options.seed)
    options.path.write_text("".join(f"{line}\n" for line in found))


if __name__ == "__main__":
    main()
