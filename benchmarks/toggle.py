"""What metrics, scheduling policies and the looking for drafts cost, switched on and off within one process.

Physics: planning runs beside the machine room, so it costs nothing until it takes longer than a step, or takes a core
from the step. What is left is what lies between two steps: handing one over, applying another.
Two runs of a benchmark differ by more than that. So one engine decodes under steady load, and every `--steps` steps a
part is switched; the first steps after each switch do not count. Neighbours make a pair, on first and off first in
turn; a pair's ratio is that of its median steps. The median of the ratios comes with the 95 % interval of a bootstrap.

    PYTHONPATH=src python benchmarks/toggle.py [--model smollm2] [--sequences 16] [--pairs 10] [--only metrics,...]

The last line is JSON. Promised: `metrics.ratio` and `policies.ratio` <= 1.02.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pagoda.backends.machine import free_memory
from pagoda.backends.texts import NativeTexts
from pagoda.catalog import open_model
from pagoda.config import EngineConfig, MachineConfig, ModelConfig, SchedulerConfig
from pagoda.engine import Engine, validate
from pagoda.engine.speculation import Controller, controller
from pagoda.obs.metrics import PrometheusObserver
from pagoda.obs.observer import NoObserver, Observer
from pagoda.runner.load import load_runner
from pagoda.runner.sizing import size
from pagoda.text.tokenizer import Tokenizer
from pagoda.types import SamplingParams

PROMPT = 64
WAITING = 32
"""Requests that wait all the while, so that there is an order to keep."""
DROPPED = 8
"""Steps after a switch that do not count: those planned before it, and what has to be caught up with."""
RESAMPLES = 4000
TELLINGS = ("arrived", "refused", "stepped", "emitted", "preempted", "matched")


class Switch(NoObserver):
    """An observer that tells on to another, as directly as if it were that one."""

    def to(self, observer: Observer) -> None:
        """From here on, this one."""
        for name in TELLINGS:
            setattr(self, name, getattr(observer, name))


@dataclass(frozen=True)
class Steps:
    """One block's: milliseconds from one step's end to the next's, and of this thread's processor time."""

    wall: float
    cpu: float


class Bench:
    """An engine that is turned by hand.

    Args:
        model: its name or path.
        sequences: that decode at a time.
        longest: tokens of each.
    """

    def __init__(self, model: str, sequences: int, longest: int) -> None:
        scheduler = SchedulerConfig(max_num_seqs=sequences, speculate="off")
        config = EngineConfig(ModelConfig(model, max_model_len=longest), MachineConfig(), scheduler)
        self.observer = Switch()
        with open_model(model) as source:
            runner = load_runner(source, config, size(source, config, free_memory()))
            tokenizer = Tokenizer.from_metadata(source.metadata)
        self.engine = Engine(runner, tokenizer, scheduler, self.observer)
        self._longest, self._sequences, self._asked = longest, sequences, 0

    def load(self) -> None:
        """As many requests as decode at a time, and those that wait; they outlast every block of one part."""
        for _ in range(self._sequences + WAITING):
            draw = random.Random(self._asked)
            prompt = [draw.randrange(1000, self.engine.capacity.vocabulary) for _ in range(PROMPT)]
            params = SamplingParams(max_tokens=self._longest - PROMPT, seed=self._asked, ignore_eos=True)
            name, now = str(self._asked), time.monotonic()
            request = validate(prompt, params, self.engine.capacity, request_id=name, arrival=now)
            self.engine.submit(request, lambda _: None)
            self._asked += 1
        while any(s.computed < PROMPT for s in self.engine._roster.running) or not self.engine._roster.running:
            self.engine.turn()

    def drop(self) -> None:
        """End them all."""
        for number in range(self._asked):
            self.engine.cancel(str(number))
        while self.engine.turn():
            pass

    def steps(self, count: int) -> Steps:
        """So many steps, of which the first do not count."""
        walls, cpus = [], []
        for number in range(count):
            wall, cpu = time.perf_counter(), time.thread_time()
            self.engine.turn()
            if number >= DROPPED:
                walls.append(time.perf_counter() - wall)
                cpus.append(time.thread_time() - cpu)
        return Steps(1000 * statistics.median(walls), 1000 * statistics.median(cpus))


def metrics(bench: Bench) -> Callable[[bool], None]:
    """Everything counted, or nothing."""
    counting, nothing = PrometheusObserver(), NoObserver()
    return lambda on: bench.observer.to(counting if on else nothing)


def policies(bench: Bench) -> Callable[[bool], None]:
    """Step times learned, each step's chunk by them, and forecasts kept; or a fixed chunk and none of it."""
    engine, nothing = bench.engine, dict[str, Callable[..., float]]()
    cost, forecast, pace = engine.cost, engine.forecast, engine._scheduler._pace
    for name in ("observe", "predict"):
        nothing[name] = lambda *_: 0.0

    def switch(on: bool) -> None:
        pace._fixed = not on
        for name, idle in nothing.items():
            setattr(cost, name, getattr(type(cost), name).__get__(cost) if on else idle)
        for name in ("planned", "heard"):
            setattr(forecast, name, getattr(type(forecast), name).__get__(forecast) if on else lambda *_, **__: None)

    return switch


def looking(bench: Bench) -> Callable[[bool], None]:
    """The n-gram drafter follows what is said (as others wait, no draft is verified); or there is none."""
    kinds = {True: controller("auto", NativeTexts()), False: Controller()}

    def switch(on: bool) -> None:
        bench.engine._speculation = bench.engine._scheduler._speculation = kinds[on]
        bench.engine._scheduler._drafts = on

    return switch


PARTS = {"metrics": metrics, "policies": policies, "looking": looking}


def interval(ratios: list[float], draw: random.Random) -> tuple[float, float]:
    """The 95 % interval of the median, by a bootstrap (Efron 1979)."""
    medians = sorted(statistics.median(draw.choices(ratios, k=len(ratios))) for _ in range(RESAMPLES))
    return medians[int(0.025 * RESAMPLES)], medians[int(0.975 * RESAMPLES)]


def measure(bench: Bench, part: str, pairs: int, steps: int) -> dict[str, Any]:
    """One part, on and off in turn."""
    switch = PARTS[part](bench)
    bench.load()
    ratios, added = [], []
    for number in range(pairs):
        taken = {}
        for on in (True, False) if number % 2 else (False, True):
            switch(on)
            taken[on] = bench.steps(steps)
        ratios.append(taken[True].wall / taken[False].wall)
        added.append(1000 * (taken[True].cpu - taken[False].cpu))
    switch(False)
    bench.drop()
    low, high = interval(ratios, random.Random(0))
    return {
        "ratio": round(statistics.median(ratios), 4), "interval": [round(low, 4), round(high, 4)],
        "step_ms": round(taken[False].wall, 2), "added_cpu_us": round(statistics.median(added), 1),
    }  # fmt: skip


def parsed(arguments: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--sequences", type=int, default=16)
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--only", default=",".join(PARTS))
    return parser.parse_args(arguments)


def main() -> None:
    """Every part that is asked for."""
    options = parsed()
    bench = Bench(options.model, options.sequences, PROMPT + options.steps * (2 * options.pairs + 1))
    found = {}
    for part in options.only.split(","):
        found[part] = measure(bench, part, options.pairs, options.steps)
        print(f"{part}: {found[part]}", flush=True)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
