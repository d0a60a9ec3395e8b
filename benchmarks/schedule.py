"""Microseconds of processor time that the control room spends on a step: planning it, and applying its result.

Planning a step with 256 sequences and 10,000 waiting is promised to take 1 ms at most. Physics: a step of the default
model at batch 32 takes tens of milliseconds on two cores; planning runs beside it, so 0.3 ms a step is about 1 % of one
core. It must not depend on how many requests wait. Looking for drafts costs more, and is bounded by `LOOKS`.

    PYTHONPATH=src python benchmarks/schedule.py
"""

from __future__ import annotations

import gc
import json
import statistics
import time

from pagoda.backends.texts import NativeTexts
from pagoda.config import SchedulerConfig
from pagoda.engine import Engine, validate
from pagoda.engine.speculation import controller
from pagoda.plan import Capacity, Sampled, StepPlan, StepResult
from pagoda.types import SamplingParams

CAPACITY = Capacity((1 << 16,), 16, 1 << 14, 1 << 15, "benchmark")
PROMPT = tuple(range(100))
STEPS = 300


class Detokenizer:
    """Text that costs nothing."""

    def push(self, _: tuple[int, ...]) -> str:
        """One character."""
        return "x"

    def flush(self) -> str:
        """Nothing."""
        return ""


class Tokenizer:
    """Makes such text."""

    stop_ids = frozenset({0})

    def detokenizer(self) -> Detokenizer:
        """One."""
        return Detokenizer()


class Runner:
    """Steps that cost nothing, and whose tokens never end a sequence."""

    capacity = CAPACITY

    def submit(self, plan: StepPlan) -> StepPlan:
        """The plan is its own handle."""
        return plan

    def finish(self, plan: StepPlan) -> StepResult:
        """Token 7 for everyone."""
        return StepResult(plan.number, tuple(Sampled(c.sequence, 7) for c in plan.chunks if c.samples), 0.0)


def measure(running: int, waiting: int, tenants: int = 1, speculate: str = "off") -> dict[str, float]:
    """Median and best microseconds of a step with so many sequences that run and that wait, of so many tenants."""
    config = SchedulerConfig(max_num_seqs=running, max_queued=running + waiting, speculate=speculate)
    engine = Engine(Runner(), Tokenizer(), config, speculation=controller(speculate, NativeTexts()))
    for i in range(running + waiting):
        params = SamplingParams(max_tokens=10_000, seed=i)
        engine.submit(
            validate(PROMPT, params, CAPACITY, request_id=str(i), arrival=i / 1000, tenant=str(i % tenants)),
            lambda _: None,
        )
    engine._take_orders()
    scheduler, plan_us, step_us = engine._scheduler, [], []
    while any(s.computed < len(PROMPT) for s in engine._roster.running) or len(engine._roster.running) < running:
        engine._step()
    schedule = scheduler.schedule

    def timed() -> StepPlan | None:
        start = time.thread_time()
        plan = schedule()
        plan_us.append(1e6 * (time.thread_time() - start))
        return plan

    scheduler.schedule = timed  # type: ignore[method-assign]
    gc.collect()
    for _ in range(STEPS):
        start = time.thread_time()
        engine._step()
        step_us.append(1e6 * (time.thread_time() - start))
    return {
        "plan_us": round(statistics.median(plan_us), 1),
        "plan_us_best": round(min(plan_us), 1),
        "step_us": round(statistics.median(step_us), 1),
        "step_us_best": round(min(step_us), 1),
    }


def main() -> None:
    figures = {}
    cases = ((1, 0, 1), (32, 0, 1), (32, 10_000, 1), (256, 0, 1), (256, 10_000, 1), (256, 10_000, 1000))
    for running, waiting, tenants in cases:
        name = f"{running}+{waiting} of {tenants}"
        figures[name] = measure(running, waiting, tenants)
        print(f"{running:4} running, {waiting:6} waiting, {tenants:4} tenants: {figures[name]}")
    figures["256+0, drafts looked for"] = measure(256, 0, 1, "auto")
    print(f" 256 running, drafts looked for: {figures['256+0, drafts looked for']}")
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
