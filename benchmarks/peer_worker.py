"""Pagoda as a worker beside other engines: load once, then measure one cell at a time, as asked on standard input.

    python benchmarks/peer_worker.py MODEL [--threads N] [--longest TOKENS]

Prints {"ready": {versions}} once. Then, for each line {"cell": "decode16", "batches": [1, 8]}, one JSON line of
seconds per token by name: {"decode16b1": 0.004, "decode16b8": 0.001}; for {"cell": "prefill512"},
{"prefill512": ...}. On a failure, {"error": text}. `prefillN` is a fresh prompt of N random tokens to its first
token; `decodeCbB` is B sequences, each with C tokens of its own, one greedy token each in step, as the best
mean of four consecutive steps. Everything goes through the engine: its scheduler, sampler and detokenizer are
in the figures.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from typing import Any

import pagoda
from pagoda.bench.offline import OfflineBench


def answer(bench: OfflineBench, asked: dict[str, Any]) -> dict[str, Any]:
    match = re.fullmatch(r"(prefill|decode)(\d+)", str(asked.get("cell")))
    if not match:
        return {"error": f"no cell is called {asked.get('cell')!r}"}
    kind, size = match[1], int(match[2])
    if kind == "prefill":
        seconds = min(bench.prefill(size) for _ in range(max(1, 1024 // size)))
        return {f"prefill{size}": seconds / size}
    return {f"decode{size}b{b}": bench.decode(size, b) / b for b in asked["batches"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--longest", type=int, default=1280, help="most tokens of a sequence in any cell")
    args = parser.parse_args()
    bench = OfflineBench(args.model, threads=args.threads, longest=args.longest)
    print(json.dumps({"ready": {"pagoda": pagoda.__version__}}), flush=True)
    for line in sys.stdin:
        try:
            result = answer(bench, json.loads(line))
        except Exception as error:  # the protocol: an error is an answer
            result = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(result), flush=True)
    bench.close()


if __name__ == "__main__":
    main()
