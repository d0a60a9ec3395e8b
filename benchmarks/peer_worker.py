"""Pagoda as a worker beside other engines: load once, then measure one cell at a time, as asked on standard input.

    python benchmarks/peer_worker.py MODEL [--threads N] [--longest TOKENS]

The protocol is `worker.py`'s. Everything goes through the engine: its scheduler, sampler and detokenizer are in the
figures.
"""

from __future__ import annotations

import argparse

from worker import private_stdout, serve

import pagoda
from pagoda.bench.offline import OfflineBench


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--longest", type=int, default=4608, help="most tokens of a sequence in any cell")
    args = parser.parse_args()
    out = private_stdout()
    bench = OfflineBench(args.model, threads=args.threads, longest=args.longest)
    serve(out, {"pagoda": pagoda.__version__}, bench.prefill, bench.decode)
    bench.close()


if __name__ == "__main__":
    main()
