"""What layers with a sliding window hold: a long prompt on a model that has some, counted in the pools.

Arithmetic: without groups of their own, every layer keeps every token. A group with a window of w keeps, of one
sequence, ceil(w / page) + 1 pages while it decodes, and those of a step's chunk besides while its prompt is computed.

    PYTHONPATH=src python benchmarks/windows.py [--model gemma3-270m] [--tokens 4000] [--out 16]

Prints one line of JSON: pages in use of each group, most at any token and at the end; bytes of them; bytes if no layer
had a window; and whether the same prompt, met again from the cache, gives the same bits.
"""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

from pagoda.engine import iterate, validate
from pagoda.llm import Opened, engine_config, open_engine
from pagoda.plan import most_pages
from pagoda.types import SamplingParams


def run(made: Opened, name: str, prompt: list[int], out: int) -> tuple[list[Any], int, float, list[list[int]]]:
    """(tokens with log-probabilities, tokens found, processor seconds, pages in use of each group at each token)."""
    params = SamplingParams(max_tokens=out, temperature=0, logprobs=3, ignore_eos=True)
    request = validate(prompt, params, made.engine.capacity, request_id=name, arrival=time.monotonic())
    told, cached, held, used = [], 0, [], time.process_time()
    for event in iterate(made.engine, [request]):
        told.append((event.token_ids, event.logprobs))
        cached = max(cached, event.cached_tokens)
        if event.finish is None:
            maps = made.engine.cache_report().maps
            held.append([sum(letter in "us" for letter in each) for each in maps])
    return told, cached, time.process_time() - used, held


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="gemma3-270m")
    parser.add_argument("--tokens", type=int, default=4000)
    parser.add_argument("--out", type=int, default=16)
    args = parser.parse_args()
    config = engine_config(args.model, max_num_seqs=4, speculate="off")
    made = open_engine(config)
    capacity, length = made.engine.capacity, args.tokens + args.out
    prompt = [(7 * i * i + 11 * i) % 200_000 + 100 for i in range(args.tokens)]
    told, found, cold_s, held = run(made, "cold", prompt, args.out)
    again, found_again, warm_s, _ = run(made, "again", prompt, args.out)
    made.close()
    most = [max(each) for each in zip(*held, strict=True)]
    whole = -(-length // capacity.page_size)
    arithmetic = [most_pages(window, length, 1, capacity.page_size) for window in capacity.windows]
    report = {
        "model": args.model,
        "tokens": length,
        "windows": capacity.windows,
        "pool_pages": capacity.pages,
        "page_bytes": capacity.page_bytes,
        "pages_held": most,
        "pages_by_arithmetic": arithmetic,
        "bytes_held": sum(a * b for a, b in zip(most, capacity.page_bytes, strict=True)),
        "bytes_without_windows": whole * sum(capacity.page_bytes),
        "found": found,
        "found_again": found_again,
        "same_bits": told == again,
        "processor_s": round(cold_s, 2),
        "processor_s_again": round(warm_s, 2),
    }
    print(json.dumps(report))


if __name__ == "__main__":
    main()
