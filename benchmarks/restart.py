"""What a restart costs: the first token of a kept prefix, computed by a fresh process and restored by another.

Physics: computing a token takes all weights times its hidden state; restoring it reads its KV once, hashes it and
copies it. For the default model in f16 that is 23 kB, and one core hashes about 1 GB/s: some 25 us a token, where
computing one takes a millisecond and more. Each figure is of a process of its own; what the system has of the files in
memory is let go first where it allows that.

    PYTHONPATH=src python benchmarks/restart.py [--model PATH] [--tokens 2000] [--runs 3] [--kv-format f16]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from pagoda.engine import iterate, validate
from pagoda.llm import engine_config, open_engine
from pagoda.types import SamplingParams

OWN = 20
"""Tokens of the prompt after the kept prefix."""


def child(args: argparse.Namespace) -> dict[str, float]:
    """In a process of its own: time to the first token of the prefix with another ending; then pin it, if asked."""
    began = time.monotonic()
    made = open_engine(engine_config(args.model, kv_dir=args.kv_dir, kv_format=args.kv_format))
    load_s = time.monotonic() - began
    prefix = [(7 * i + 1) % 40_000 + 100 for i in range(args.tokens)]
    params = SamplingParams(max_tokens=1, temperature=0, ignore_eos=True)
    used = time.process_time()
    request = validate(
        [*prefix, args.child, *range(200, 199 + OWN)], params, made.engine.capacity, request_id="0",
        arrival=time.monotonic(),
    )  # fmt: skip
    (last,) = (event for event in iterate(made.engine, [request]) if event.finish is not None)
    used = time.process_time() - used
    assert last.timings is not None
    report = made.engine.disk_report()
    made.close()
    return {
        "ttft_s": last.timings.first_token,
        "processor_s": used,
        "cached": last.cached_tokens,
        "token": last.token_ids[0],
        "load_s": load_s,
        "restored": report.restored if report else 0,
        "kept_bytes": report.bytes if report else 0,
    }


def let_go(directory: Path) -> None:
    """Ask the system to forget what it has of the files in memory."""
    for path in directory.iterdir():
        fd = os.open(path, os.O_RDONLY)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)


def run(args: argparse.Namespace, kv_dir: str | None, ending: int) -> dict[str, float]:
    command = [sys.executable, __file__, "--child", str(ending), "--tokens", str(args.tokens)]
    command += ["--model", args.model, "--kv-format", args.kv_format]
    out = subprocess.run([*command, *(["--kv-dir", kv_dir] if kv_dir else [])], check=True, capture_output=True)
    return json.loads(out.stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--tokens", type=int, default=2000)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--kv-format", default="f16")
    parser.add_argument("--kv-dir")
    parser.add_argument("--child", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child is not None:
        print(json.dumps(child(args)))
        return
    computed, restored = [], []
    with tempfile.TemporaryDirectory(dir=args.kv_dir) as folder:
        kept = str(Path(folder) / "kv")
        run(args, kept, 1000)
        for i in range(args.runs):
            let_go(Path(kept))
            computed.append(run(args, None, 1001 + i))
            restored.append(run(args, kept, 1001 + i))
            assert restored[-1]["token"] == computed[-1]["token"], "the restored prefix gives another token"
    best = {name: min(each["ttft_s"] for each in runs) for name, runs in (("c", computed), ("r", restored))}
    print(
        f"prefix of {args.tokens} tokens, KV in {args.kv_format}, {restored[0]['kept_bytes'] / 2**20:.0f} MiB on disk"
    )
    for name, runs in (("computed", computed), ("restored", restored)):
        times = ", ".join(f"{each['ttft_s'] * 1e3:.0f}" for each in runs)
        print(f"{name}: TTFT {times} ms; {runs[0]['cached']:.0f} tokens found; load {runs[0]['load_s']:.2f} s")
    print(f"restored / computed: {best['r'] / best['c']:.3f} (best of {args.runs})")
    print(json.dumps({
        "tokens": args.tokens, "kv_format": args.kv_format,
        "computed_ttft_s": best["c"], "restored_ttft_s": best["r"], "ratio": best["r"] / best["c"],
        "median_ratio": statistics.median(r["ttft_s"] / c["ttft_s"] for r, c in zip(restored, computed, strict=True)),
        "processor_ratio": min(r["processor_s"] for r in restored) / min(c["processor_s"] for c in computed),
        "cached_tokens": restored[0]["cached"], "restored_pages": restored[0]["restored"],
        "bytes_on_disk": restored[0]["kept_bytes"],
    }))  # fmt: skip


if __name__ == "__main__":
    main()
