"""What speculation brings: tokens per second with it and without, in one process, in turn.

Physics: decoding one sequence reads every weight for one token; verifying k drafts reads them once for up to k + 1.
With many sequences the products count and not the reading, so drafts gain less: they use what batching leaves over.

    PYTHONPATH=src python benchmarks/speculation.py smollm2 --speculate auto --batches 1,8
    PYTHONPATH=src python benchmarks/speculation.py smollm2 --speculate self:20 --depths 1,2,4 --coupling

Each round runs the same prompts with speculation and without, in an order that turns, under a tenant of its own, so
that no run finds another's outputs. A ratio is of decoding alone, from when all sequences have a token to the first
that ends. With `--depths` the controller is compared with drafting always, so deep. `--coupling` says how often a draft
of `self:K` can be right at most, if draft and target may be coupled in any way (the overlap of their distributions),
and with the shared noise that makes outputs independent of drafts. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import numpy as np

from pagoda.backends.cpu import CpuBackend, rope_table
from pagoda.backends.ops import Step
from pagoda.catalog import open_model
from pagoda.config import SchedulerConfig
from pagoda.engine import Engine, iterate, validate
from pagoda.engine.speculation import Controller, controller
from pagoda.llm import Opened, engine_config, open_engine
from pagoda.models import build, read_config
from pagoda.runner.guessing import first_layers
from pagoda.runner.runner import whole_model
from pagoda.types import SamplingParams

CODE = """def total_price(items, tax_rate, discount):
    subtotal = 0.0
    for item in items:
        subtotal += item.price * item.quantity
    discounted = subtotal * (1.0 - discount)
    tax = discounted * tax_rate
    return round(discounted + tax, 2)


def average_price(items):
    if not items:
        return 0.0
    return sum(item.price for item in items) / len(items)
"""
LIST = """Order 1041: Ada Lovelace, 12 St James Square, London. Two brass gears and one punched card.
Order 1042: Charles Babbage, 1 Dorset Street, London. Nine hundred brass gears, delivery in parts.
Order 1043: Grace Hopper, 5 Navy Yard, Arlington. One roll of tape and a pair of tweezers.
Order 1044: Alan Turing, 78 High Street, Hampton. One bicycle chain and a gas mask.
"""
TASKS = {
    "editing": (
        f"Write this code again exactly as it is, but name the first function sum_price:\n\n{CODE}",
        f"Repeat the following program word for word, then stop:\n\n{CODE}",
    ),
    "extraction": (
        f"Copy all the orders below, each on a line of its own, without changing a word:\n\n{LIST}",
        f"Write down the orders of the customers in London, in full, and then all the others:\n\n{LIST}",
    ),
    "prose": (
        "Tell me a long story about a lighthouse keeper who finds a letter in a bottle.",
        "Explain to a child why the sky is blue and sunsets are red.",
        "Write an essay on what a city loses when its old trees are cut down.",
        "Describe a walk through a market in the morning, with all that one can smell and hear.",
    ),
}
TOKENS = 96
"""Of each answer."""


@dataclass
class Run:
    """One batch of answers."""

    tokens: int = 0
    seconds: float = 0.0
    accepted: int = 0
    rejected: int = 0


@dataclass
class Bench:
    """One engine; `measure` runs a batch of a task's prompts through it."""

    engine: Engine
    opened: Opened
    serial: Any = field(default_factory=count)

    def measure(self, task: str, batch: int, temperature: float, speculate: bool, tokens: int) -> Run:
        """Answers to a batch of prompts, decoded together."""
        number, prompts = next(self.serial), TASKS[task]
        requests = [
            validate(
                self.opened.tokenizer.encode_chat([{"role": "user", "content": prompts[i % len(prompts)]}]),
                SamplingParams(temperature=temperature, seed=i, max_tokens=tokens, ignore_eos=True),
                self.engine.capacity,
                request_id=f"{number}-{i}",
                arrival=time.monotonic(),
                tenant=str(number),
                speculate=speculate,
            )
            for i in range(batch)
        ]
        run, waiting, began, before, made = Run(), batch, 0.0, 0, 0
        met: set[str] = set()
        for event in iterate(self.engine, requests):
            made += len(event.token_ids)
            if event.request_id not in met:
                met.add(event.request_id)
                if len(met) == batch:
                    began, before = time.perf_counter(), made
            if event.finish is not None:
                run.accepted += event.accepted_drafts
                run.rejected += event.rejected_drafts
                waiting -= 1
                if waiting == batch - 1:  # the first to end: from here on the batch is smaller
                    run.seconds, run.tokens = time.perf_counter() - began, made - before
        return run


def interval(values: Sequence[float]) -> tuple[float, float]:
    """The median's 95 % interval, by order statistics."""
    ordered, n = sorted(values), len(values)
    reach = int(0.98 * n**0.5)
    return ordered[max(n // 2 - reach, 0)], ordered[min(n // 2 + reach, n - 1)]


def compare(bench: Bench, task: str, batch: int, temperature: float, rounds: int, tokens: int) -> dict[str, Any]:
    """With speculation against without."""
    ratios, best = [], {True: 0.0, False: 0.0}
    accepted = rejected = 0
    for turn in range(rounds):
        rates = {}
        for speculate in ((True, False), (False, True))[turn % 2]:
            run = bench.measure(task, batch, temperature, speculate, tokens)
            rates[speculate] = run.tokens / run.seconds
            best[speculate] = max(best[speculate], rates[speculate])
            accepted, rejected = accepted + run.accepted, rejected + run.rejected
        ratios.append(rates[True] / rates[False])
    low, high = interval(ratios)
    return {
        "task": task,
        "batch": batch,
        "temperature": temperature,
        "plain_tok_s": round(best[False], 1),
        "tok_s": round(best[True], 1),
        "best_ratio": round(best[True] / best[False], 3),
        "median_ratio": round(statistics.median(ratios), 3),
        "interval": [round(low, 3), round(high, 3)],
        "accepted": accepted,
        "rejected": rejected,
    }


def coupling(model: str, layers: int, temperature: float) -> dict[str, float]:
    """Of drafts by the first layers: the chance to be right, with the best coupling and with shared noise."""
    backend = CpuBackend()
    with open_model(model) as source:
        built = build(source, read_config(source), backend.weights, lambda f, n: rope_table(f, n, adjacent=True), 512)
    opened = open_engine(engine_config(model, speculate="off"))
    ids = opened.tokenizer.encode_prompt(CODE + LIST)[:256]
    opened.close()
    rows = np.arange(len(ids), dtype=np.int32)
    pages = np.arange(-(-len(ids) // 16), dtype=np.int32)[None]
    step = Step(np.array(ids, np.int32), rows, rows * 0, (pages,), rows)
    logits = []
    for program in (
        backend.program(lambda ops: whole_model(built, ops)),
        backend.program(lambda ops: first_layers(built, layers, ops)),
    ):
        store = backend.kv_store(built.groups, [pages.size], 16, "f16")
        logits.append(program.run(store, step)["logits"].astype(np.float64) / temperature)
    target, draft = (np.exp(x - x.max(-1, keepdims=True)) for x in logits)
    target, draft = (p / p.sum(-1, keepdims=True) for p in (target, draft))
    rng, same = np.random.default_rng(0), []
    for _ in range(20):
        noise = rng.gumbel(size=logits[0].shape)
        same.append(((logits[0] + noise).argmax(-1) == (logits[1] + noise).argmax(-1)).mean())
    overlap = float(np.minimum(target, draft).sum(-1).mean())
    return {"maximal_coupling": round(overlap, 3), "shared_noise": round(float(np.mean(same)), 3)}


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="smollm2")
    parser.add_argument("--speculate", default="auto")
    parser.add_argument("--tasks", default=",".join(TASKS))
    parser.add_argument("--batches", default="1,8")
    parser.add_argument("--temperatures", default="0,0.8")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=TOKENS)
    parser.add_argument("--depths", default="", help="also draft always, so deep")
    parser.add_argument("--coupling", action="store_true")
    args = parser.parse_args()
    opened = open_engine(engine_config(args.model, speculate=args.speculate))
    opened.engine.close()  # its runner goes on under engines of this file's own
    config = SchedulerConfig(speculate=args.speculate)
    depths = [int(d) for d in args.depths.split(",") if d]
    policies: dict[str, Controller] = {"controller": controller(args.speculate)}
    for depth in depths:
        drafters = controller(args.speculate).drafters
        policies[f"always {depth}"] = Controller(drafters[-1:], always=True, most=depth)
    results = []
    print("| policy | task | batch | temperature | plain tok/s | tok/s | best | median (95 %) | accepted of drafts |")
    print("|---|---|---:|---:|---:|---:|---:|---:|---:|")
    for name, policy in policies.items():
        engine = Engine(opened.runner, opened.tokenizer, config, speculation=policy)
        engine.start()
        bench = Bench(engine, opened)
        for task in args.tasks.split(","):
            for batch in map(int, args.batches.split(",")):
                for temperature in map(float, args.temperatures.split(",")):
                    found = compare(bench, task, batch, temperature, args.rounds, args.tokens)
                    results.append({"policy": name, **found})
                    drafts = found["accepted"] + found["rejected"]
                    share = f"{found['accepted'] / drafts:.0%} of {drafts}" if drafts else "none"
                    low, high = found["interval"]
                    print(
                        f"| {name} | {task} | {batch} | {temperature:g} | {found['plain_tok_s']} | {found['tok_s']} "
                        f"| {found['best_ratio']:.2f} | {found['median_ratio']:.2f} ({low:.2f} to {high:.2f}) "
                        f"| {share} |",
                        flush=True,
                    )
        engine.close()
    opened.runner.close()
    extra: dict[str, Any] = {}
    if args.coupling and args.speculate.startswith("self:"):
        layers = int(args.speculate.partition(":")[2])
        extra = {"coupling": {t: coupling(args.model, layers, float(t)) for t in ("0.8", "1.0")}}
        print(extra["coupling"])
    print(json.dumps({"model": args.model, "speculate": args.speculate, "results": results, **extra}))


if __name__ == "__main__":
    main()
