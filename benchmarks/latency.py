"""Latency that is promised: what clients of `pagoda serve` see under four loads. Wants a quiet machine.

Physics: a step takes about a constant, and a time for each row. A chat's next token waits for the step it is in, so a
prompt's rows make everybody's step longer: half of a step's time for prompts is twice the gap, and the prompt takes
about twice as long as alone. Beyond the machine's rate a queue grows without end, unless what cannot keep its target is
refused; and a queue that goes by arrival alone lets one client's burst be everyone's wait.

    PYTHONPATH=src python benchmarks/latency.py [--model smollm2] [--seconds 30] [--only chats,overload,keys]

Takes about six minutes at 30 seconds a load. The last line is JSON: under `promises` each figure that is promised, with
its bound. `chats.chunk_4096` is there to compare with: what chats feel without interleaving.
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
CHATS, CHAT_TOKENS, LONG_TOKENS, LONGS = 16, 300, 3000, 3
GOAL = 1.8
"""A TPOT target, in ITL p99 of calm chats."""
BEFORE_S = 1.0
"""Before the first long prompt."""
LIGHT = 0.5
"""Requests a second of the light key."""


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


def warm(url: str, key: str = "") -> None:
    """Steps of every size, so that the server knows how long they take."""

    async def run() -> None:
        await play(await target(url, key), closed(16, SHAPE, 99), 8)

    asyncio.run(run())


def chats_of(seed: int) -> list[Ask]:
    return [Ask(0.0, ((f"chat {seed} {i}", 60),), CHAT_TOKENS) for i in range(CHATS)]


async def chats_and_longs(url: str, seed: int, chats: bool, longs: bool) -> tuple[list[Outcome], list[Outcome]]:
    """Chats all at once; from a second later, long prompts one after another, until chats or prompts are done."""
    to, done = await target(url), asyncio.Event()

    async def talk() -> list[Outcome]:
        outcomes = await play(to, chats_of(seed), CHATS) if chats else []
        done.set()
        return outcomes

    async def ask() -> list[Outcome]:
        outcomes: list[Outcome] = []
        await asyncio.sleep(BEFORE_S if chats else 0.0)
        while longs and len(outcomes) < LONGS and not (chats and done.is_set()):
            outcomes += await play(to, [Ask(0.0, ((f"long {seed} {len(outcomes)}", LONG_TOKENS),), 4)], 1)
        return outcomes

    talked, asked = await asyncio.gather(talk(), ask())
    return talked, asked


def gaps(outcomes: list[Outcome]) -> list[float]:
    return [gap for outcome in outcomes for gap in outcome.gaps]


def chats(model: str) -> dict[str, Any]:
    """Calm, a long prompt alone, and both: as it is by default, with a TPOT target, and without interleaving."""
    found: dict[str, Any] = {}
    calm_p99 = alone_p50 = 0.0
    for name in ("default", "tpot_target", "chunk_4096"):
        goal = 1000 * GOAL * calm_p99
        options = {"default": (), "tpot_target": ("--tpot-target", f"{goal:.1f}"), "chunk_4096": ("--chunk", "4096")}
        with serving(model, *options[name]) as url:
            warm(url)
            if name == "default":
                calm, _ = asyncio.run(chats_and_longs(url, 1, True, False))
                _, alone = asyncio.run(chats_and_longs(url, 2, False, True))
                calm_p99, alone_p50 = quantile(gaps(calm), 0.99), quantile([o.ttft for o in alone], 0.5)
            talked, asked = asyncio.run(chats_and_longs(url, 3, True, True))
        itl, ttft = quantile(gaps(talked), 0.99), quantile([o.ttft for o in asked], 0.5)
        found[name] = {
            "itl_p99_ms": round(1000 * itl, 1), "itl_ratio": round(itl / calm_p99, 2), "longs": len(asked),
            "ttft_p50_ms": round(1000 * ttft, 1), "ttft_ratio": round(ttft / alone_p50, 2) if asked else None,
        }  # fmt: skip
    found["tpot_target"]["target_ms"] = round(1000 * GOAL * calm_p99, 1)
    found["calm_itl_p99_ms"], found["alone_ttft_p50_ms"] = round(1000 * calm_p99, 1), round(1000 * alone_p50, 1)
    return found


def overload(model: str, seconds: float, target_ms: float) -> dict[str, Any]:
    """The rate at which the machine is just busy, then that rate and three times it, with a TTFT target."""
    with serving(model, "--ttft-target", str(target_ms)) as url:
        warm(url)

        async def run(rate: float | None, seed: int) -> list[Outcome]:
            to = await target(url)
            if rate is None:
                relaxed = Target(to.client, to.model, extra=(("slo", {"on_miss": "serve"}),))
                return await play(relaxed, closed(max(int(1.5 * seconds), 16), SHAPE, seed), 16)
            return await play(to, poisson(rate, seconds, SHAPE, seed))

        capacity = report(asyncio.run(run(None, 1)))
        rate = capacity["served"] / max(capacity["seconds"], 0.1)
        once, thrice = (report(asyncio.run(run(n * rate, seed)), target_ms / 1000) for n, seed in ((1, 2), (3, 3)))
        error = prediction_error(url)
    goodputs = [each.get("goodput_tokens_per_s", 0.0) for each in (once, thrice)]
    return {
        "rate_per_s": round(rate, 2), "once": once, "thrice": thrice, "kept": thrice.get("kept", 0.0),
        "goodput_ratio": round(goodputs[1] / goodputs[0], 3) if goodputs[0] else 0.0,
        "refused_ms": thrice.get("refused_ms", {}), "prediction_error": error,
    }  # fmt: skip


def prediction_error(url: str) -> float | None:
    """Median relative error of the TTFTs predicted, from the server's histogram: linear within a bucket."""
    with urllib.request.urlopen(f"{url}/metrics") as answer:
        lines = answer.read().decode().splitlines()
    name = 'pagoda_ttft_prediction_error_bucket{le="'
    pairs = [line.removeprefix(name).split('"} ') for line in lines if line.startswith(name)]
    below, least = 0.0, 0.0
    half = float(pairs[-1][1]) / 2 if pairs else 0.0
    for bound, count in ((float(bound), float(count)) for bound, count in pairs):
        if count >= half > 0:
            return round(least + (bound - least) * (half - below) / max(count - below, 1.0), 3)
        least, below = bound, count
    return None


def keys(model: str, seconds: float) -> dict[str, Any]:
    """A key that asks now and then, alone and beside one that asks fifty times as often."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "keys.toml"
        light, heavy = new_key(file, "light"), new_key(file, "heavy")

        async def run(url: str, both: bool) -> list[Outcome]:
            one = play(await target(url, light), poisson(LIGHT, 1.5 * seconds, SHAPE, 5))
            if not both:
                return await one
            other = asyncio.create_task(play(await target(url, heavy), poisson(50 * LIGHT, 1.5 * seconds, SHAPE, 6)))
            outcomes = await one
            other.cancel()
            return outcomes

        found: dict[str, Any] = {}
        options = ("--api-keys", str(file), "--max-queued-tokens", "50000", "--drain-timeout", "0")
        with serving(model, *options) as url:
            warm(url, light)
            for name, both in (("alone", False), ("beside", True)):
                told = report(asyncio.run(run(url, both)))
                found[name] = {"ttft_ms": told["ttft_ms"], "served": told["served"], "refused": told["refused"]}
    ratio = found["beside"]["ttft_ms"]["p99"] / found["alone"]["ttft_ms"]["p99"]
    return {**found, "ttft_ratio": round(ratio, 2)}


def promises(found: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Each figure that is promised, with its bound and whether it is kept."""
    rows: list[tuple[str, float | None, str, float]] = []
    if "chats" in found:
        default, aimed = found["chats"]["default"], found["chats"]["tpot_target"]
        rows += [
            ("chats' ITL p99 over calm", default["itl_ratio"], "<=", 2.0),
            ("long prompt's TTFT over alone", default["ttft_ratio"], "<=", 2.5),
            (
                "with a TPOT target: chats' ITL p99 over it",
                round(aimed["itl_p99_ms"] / aimed["target_ms"], 3),
                "<=",
                1.0,
            ),
            ("with a TPOT target: long prompt's TTFT over alone", aimed["ttft_ratio"], "<=", 2.5),
        ]
    if "overload" in found:
        load = found["overload"]
        rows += [
            ("at 3x: share of the admitted that keep the TTFT", load["kept"], ">=", 0.95),
            ("at 3x: goodput over that at 1x", load["goodput_ratio"], ">=", 0.9),
            ("at 3x: refusals answered, ms, p99", load["refused_ms"].get("p99"), "<=", 50.0),
            ("TTFT predicted against actual, median error", load["prediction_error"], "<=", 0.15),
        ]
    if "keys" in found:
        rows.append(("light key's TTFT p99 over alone", found["keys"]["ttft_ratio"], "<=", 1.5))
    return {
        name: {"value": value, "bound": f"{sign} {bound}", "kept": value is not None and kept(value, sign, bound)}
        for name, value, sign, bound in rows
    }


def kept(value: float, sign: str, bound: float) -> bool:
    """Whether a bound holds."""
    return value <= bound if sign == "<=" else value >= bound


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--ttft-target", type=float, default=2000.0, help="of the overload, in ms")
    parser.add_argument("--only", default="chats,overload,keys")
    options = parser.parse_args()
    loads = {
        "chats": lambda: chats(options.model),
        "overload": lambda: overload(options.model, options.seconds, options.ttft_target),
        "keys": lambda: keys(options.model, options.seconds),
    }
    found: dict[str, Any] = {}
    for name in options.only.split(","):
        began = time.monotonic()
        found[name] = loads[name]()
        print(f"{name} ({time.monotonic() - began:.0f} s): {json.dumps(found[name], indent=1)}", flush=True)
    found["promises"] = promises(found)
    for name, row in found["promises"].items():
        print(f"{'kept  ' if row['kept'] else 'BROKEN'} {name}: {row['value']}, {row['bound']}")
    print(json.dumps(found))


if __name__ == "__main__":
    main()
