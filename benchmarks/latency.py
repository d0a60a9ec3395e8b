"""Latency that is promised: what clients of `pagoda serve` see under four loads. Wants a quiet machine.

Physics: a step takes about a constant, and a time for each row. A chat's next token waits for the step it is in, so a
prompt's rows make everybody's step longer: half of a step's time for prompts is twice the gap, and the prompt takes
about twice as long as alone. Beyond the machine's rate a queue grows without end, unless what cannot keep its target is
refused; and a queue that goes by arrival alone lets one client's burst be everyone's wait.

    PYTHONPATH=src python benchmarks/latency.py [--model smollm2] [--seconds 60] [--only chats,overload,keys]

The last line is JSON. Figures that are promised: `chats.default` with `itl_ratio` <= 2 and `ttft_ratio` <= 2.5 (or
`chats.tpot_target`: ITL within the target); `overload.kept` >= 0.95, `overload.goodput_ratio` >= 0.9,
`overload.refused_ms` <= 50, `overload.prediction_error` <= 0.15; `keys.ttft_ratio` <= 1.5.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pagoda.bench.client import Client
from pagoda.bench.outcomes import Outcome, quantile, report
from pagoda.bench.serve import Target, play
from pagoda.bench.workloads import Ask, Shape, closed, poisson
from pagoda.server.keys import new_key

SHAPE = Shape((64, 512), (32, 96))
CHATS, CHAT_TOKENS, LONG_TOKENS = 16, 700, 3000
TTFT_MS = 2000.0


@contextmanager
def serving(model: str, *options: str) -> Iterator[str]:
    """A server of its own; its address."""
    command = [sys.executable, "-m", "pagoda", "serve", model, "--port", "0", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("ready "), "the server did not start"
        try:
            yield line.removeprefix("ready ").strip()
        finally:
            process.terminate()


async def target(url: str, key: str = "") -> Target:
    client = Client(url, key)
    return Target(client, await client.model())


def warm(url: str) -> None:
    """Steps of every size, so that the server knows how long they take."""

    async def run() -> None:
        await play(await target(url), closed(24, SHAPE, 99), 8)

    asyncio.run(run())


def chats_of(seed: int) -> list[Ask]:
    return [Ask(0.0, ((f"chat {seed} {i}", 60),), CHAT_TOKENS) for i in range(CHATS)]


async def chats_and_longs(url: str, seed: int, chats: bool, longs: bool) -> tuple[list[Outcome], list[Outcome]]:
    """Chats all at once; from a second later, long prompts one after another, until the chats are done, or five."""
    to, done = await target(url), asyncio.Event()

    async def talk() -> list[Outcome]:
        outcomes = await play(to, chats_of(seed), CHATS) if chats else []
        done.set()
        return outcomes

    async def ask() -> list[Outcome]:
        outcomes: list[Outcome] = []
        await asyncio.sleep(1.0 if chats else 0.0)
        while longs and len(outcomes) < 5 and not (chats and done.is_set()):
            outcomes += await play(to, [Ask(0.0, ((f"long {seed} {len(outcomes)}", LONG_TOKENS),), 4)], 1)
        return outcomes

    talked, asked = await asyncio.gather(talk(), ask())
    return talked, asked


def gaps(outcomes: list[Outcome]) -> list[float]:
    return [gap for outcome in outcomes for gap in outcome.gaps]


def chats(model: str) -> dict[str, Any]:
    """Calm, a long prompt alone, and both: as it is by default, with a TPOT target, and without interleaving."""
    found: dict[str, Any] = {}
    with serving(model) as url:
        warm(url)
        calm, _ = asyncio.run(chats_and_longs(url, 1, True, False))
        _, alone = asyncio.run(chats_and_longs(url, 2, False, True))
    calm_p99, alone_p50 = quantile(gaps(calm), 0.99), quantile([o.ttft for o in alone], 0.5)
    found["calm_itl_p99_ms"], found["alone_ttft_p50_ms"] = round(1000 * calm_p99, 1), round(1000 * alone_p50, 1)
    goal = 1000 * 1.8 * calm_p99
    for name, options in (
        ("default", ()),
        ("tpot_target", ("--tpot-target", f"{goal:.1f}")),
        ("chunk_4096", ("--chunk", "4096")),
    ):
        with serving(model, *options) as url:
            warm(url)
            talked, asked = asyncio.run(chats_and_longs(url, 3, True, True))
        itl, ttft = quantile(gaps(talked), 0.99), quantile([o.ttft for o in asked], 0.5)
        found[name] = {
            "itl_p99_ms": round(1000 * itl, 1), "itl_ratio": round(itl / calm_p99, 2), "longs": len(asked),
            "ttft_p50_ms": round(1000 * ttft, 1), "ttft_ratio": round(ttft / alone_p50, 2),
        }  # fmt: skip
    found["tpot_target"]["target_ms"] = round(goal, 1)
    return found


def prediction_error(url: str) -> float | None:
    """Median relative error of the TTFTs predicted, to a bucket's upper bound, from the server's metrics."""
    with urllib.request.urlopen(f"{url}/metrics") as answer:
        lines = answer.read().decode().splitlines()
    name = 'pagoda_ttft_prediction_error_bucket{le="'
    pairs = [line.removeprefix(name).split('"} ') for line in lines if line.startswith(name)]
    counts = [(float(bound), float(count)) for bound, count in pairs]
    return next((bound for bound, count in counts if count >= counts[-1][1] / 2), None) if counts else None


def overload(model: str, seconds: float) -> dict[str, Any]:
    """The rate at which the machine is just busy, then that rate and three times it, with a TTFT target."""
    with serving(model, "--ttft-target", str(TTFT_MS)) as url:
        warm(url)

        async def run(rate: float | None, seed: int) -> list[Outcome]:
            to = await target(url)
            if rate is None:
                relaxed = Target(to.client, to.model, extra=(("slo", {"on_miss": "serve"}),))
                return await play(relaxed, closed(64, SHAPE, seed), 16)
            return await play(to, poisson(rate, seconds, SHAPE, seed))

        capacity = report(asyncio.run(run(None, 1)))
        rate = capacity["served"] / capacity["seconds"]
        once = report(asyncio.run(run(rate, 2)), TTFT_MS / 1000)
        thrice = report(asyncio.run(run(3 * rate, 3)), TTFT_MS / 1000)
        error = prediction_error(url)
    return {
        "rate_per_s": round(rate, 2), "once": once, "thrice": thrice, "kept": thrice["kept"],
        "goodput_ratio": round(thrice["goodput_tokens_per_s"] / once["goodput_tokens_per_s"], 3),
        "refused_ms": thrice["refused_ms"]["p99"], "prediction_error": error,
    }  # fmt: skip


def keys(model: str, seconds: float) -> dict[str, Any]:
    """A key that asks now and then, alone and beside one that asks fifty times as often."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "keys.toml"
        light, heavy = new_key(file, "light"), new_key(file, "heavy")
        rate = 0.3

        async def run(url: str, both: bool) -> list[Outcome]:
            one = play(await target(url, light), poisson(rate, 2 * seconds, SHAPE, 5))
            if not both:
                return await one
            other = play(await target(url, heavy), poisson(50 * rate, 2 * seconds, SHAPE, 6))
            outcomes, _ = await asyncio.gather(one, other)
            return outcomes

        found = {}
        for name, both in (("alone", False), ("beside", True)):
            options = ("--api-keys", str(file), "--max-queued-tokens", "50000", "--drain-timeout", "0")
            with serving(model, *options) as url:
                found[name] = report(asyncio.run(run(url, both)))["ttft_ms"]
    return {**found, "ttft_ratio": round(found["beside"]["p99"] / found["alone"]["p99"], 2)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--only", default="chats,overload,keys")
    options = parser.parse_args()
    loads = {
        "chats": lambda: chats(options.model),
        "overload": lambda: overload(options.model, options.seconds),
        "keys": lambda: keys(options.model, options.seconds),
    }
    found = {}
    for name in options.only.split(","):
        began = time.monotonic()
        found[name] = loads[name]()
        print(f"{name} ({time.monotonic() - began:.0f} s): {json.dumps(found[name], indent=1)}", flush=True)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
