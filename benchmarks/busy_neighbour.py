"""What a busy neighbour on one core costs decoding: shared hosts are normal, and a spinning barrier collapses there.

    python benchmarks/busy_neighbour.py [MODEL] [--rounds N] [--tokens N] [--core C] [--threads N]

One sequence decodes on all allowed cores, with and without another process that never sleeps, pinned to one core, in
turns; each rate is a whole round's tokens over its time, the best of many rounds. With two cores, half of the machine
is left at worst when the neighbour takes its fair share, so `kept` near 0.5 says that nothing is lost besides. Last
line: JSON {"idle_tok_s", "busy_tok_s", "kept", "threads", "core"}.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from pagoda.bench.offline import StepClock
from pagoda.engine import iterate, validate
from pagoda.llm import Opened, engine_config, open_engine
from pagoda.types import SamplingParams

LOOP = "import os, sys\nos.sched_setaffinity(0, {int(sys.argv[1])})\nwhile True: pass"


@contextmanager
def neighbour(core: int) -> Iterator[subprocess.Popen[bytes]]:
    """A process that keeps a core busy whenever it is not stopped; it begins stopped."""
    with subprocess.Popen([sys.executable, "-c", LOOP, str(core)]) as process:
        process.send_signal(signal.SIGSTOP)
        try:
            yield process
        finally:
            process.kill()


def decode(opened: Opened, clock: StepClock, tokens: int) -> float:
    """Tokens a second of one sequence, over the whole of its output."""
    clock.stamps.clear()
    params = SamplingParams(max_tokens=tokens, temperature=0.0, seed=0, ignore_eos=True)
    request = validate(list(range(100, 116)), params, opened.engine.capacity, request_id="decode", arrival=0.0)
    for _ in iterate(opened.engine, [request]):
        pass
    stamps = [stamp.at for stamp in clock.stamps if stamp.rows == 1]
    return (len(stamps) - 1) / (stamps[-1] - stamps[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="smollm2")
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--tokens", type=int, default=96, help="of one round")
    parser.add_argument("--core", type=int, help="the neighbour's; the first allowed one if none")
    parser.add_argument("--threads", type=int)
    asked = parser.parse_args()
    core = min(os.sched_getaffinity(0)) if asked.core is None else asked.core
    clock = StepClock()
    config = engine_config(
        asked.model, threads=asked.threads, max_num_seqs=1, max_model_len=max(256, asked.tokens + 16)
    )
    opened = open_engine(config, clock)
    best = {"idle": 0.0, "busy": 0.0}
    with neighbour(core) as process:
        for _ in range(asked.rounds):
            best["idle"] = max(best["idle"], decode(opened, clock, asked.tokens))
            process.send_signal(signal.SIGCONT)
            best["busy"] = max(best["busy"], decode(opened, clock, asked.tokens))
            process.send_signal(signal.SIGSTOP)
            print(f"idle {best['idle']:.1f} tok/s, busy {best['busy']:.1f} tok/s", flush=True)
    opened.close()
    rounded = {f"{name}_tok_s": round(rate, 1) for name, rate in best.items()}
    kept = round(best["busy"] / best["idle"], 3)
    threads = asked.threads or len(os.sched_getaffinity(0))
    print(json.dumps({**rounded, "kept": kept, "threads": threads, "core": core}))


if __name__ == "__main__":
    main()
