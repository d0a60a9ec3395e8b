"""What speculation brings, and what it costs: tokens per second with it and without, in one process, in turn.

Physics: decoding one sequence reads every weight for one token; verifying k drafts reads them once for up to k + 1.
With many sequences the products count and not the reading, so drafts gain less: they use what batching leaves over.

    PYTHONPATH=src python benchmarks/speculation.py tasks smollm2 --batches 1,8 --temperatures 0,0.8
    PYTHONPATH=src python benchmarks/speculation.py tasks smollm2 --depths 0,1,2,4,8,15
    PYTHONPATH=src python benchmarks/speculation.py toggle smollm2 --batches 1,2,4,8,16,32
    PYTHONPATH=src python benchmarks/speculation.py depths smollm2 --speculate self:20 --depths 1,2,4,8
    PYTHONPATH=src python benchmarks/speculation.py depths smollm2 --speculate draft:SMALLER.gguf --depths 1,2,4,8

`tasks`: each round runs the same prompts with every policy once, in an order that turns, and the next round others; a
policy is plain decoding, the controller, or with `--depths` drafting always, so deep. `toggle`: what it costs where it
brings little; speculation is turned on and off every few steps while answers are written. `depths`: of a drafter, by
depth, how many drafts were right, what a guess costs and what all of it brings, beside the most that any drafter of
those distributions could have right. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from collections.abc import Sequence
from typing import Any

from coupling import both, coupling
from speculation_tasks import CODE, LIST, TASKS, Bench, Run
from speculation_toggle import Toggled, toggle

from pagoda.backends.texts import NativeTexts
from pagoda.config import SchedulerConfig
from pagoda.engine import Engine
from pagoda.engine.request import Sequence as Underway
from pagoda.engine.speculation import Controller, controller
from pagoda.engine.speculation.drafter import Drafter, Guess
from pagoda.llm import Opened, engine_config, open_engine
from pagoda.plan import StepPlan, StepResult

PLAIN = "plain"
"""The policy that others are compared with."""


class Watched(Controller):
    """A controller that counts what guesses cost."""

    def __init__(self, drafters: Sequence[Drafter], depth: int) -> None:
        super().__init__(drafters, always=True, most=depth)
        self.guessing = 0.0
        self.guesses = 0

    def finished(self, plan: StepPlan, result: StepResult, gap: float | None, ahead: bool) -> None:
        """And the seconds that guesses took."""
        super().finished(plan, result, gap, ahead)
        self.guessing += result.guessing
        self.guesses += max((chunk.drafts for chunk in plan.chunks), default=0)


class Policies(Controller):
    """Several ways to speculate in one engine, one at a time."""

    def __init__(self, opened: Opened) -> None:
        super().__init__()
        self.opened = opened
        self.all: dict[str, Controller] = {}
        self.now: Controller = self

    @property
    def drafters(self) -> tuple[Drafter, ...]:
        """Of all of them."""
        return tuple(drafter for policy in self.all.values() for drafter in policy.drafters)

    def open(self, singles: Sequence[Underway], rows: int, alone: bool, within: float = math.inf) -> bool:
        """As the one says whose turn it is."""
        return self.now.open(singles, rows, alone, within)

    def draft(self, sequence: Underway) -> tuple[str, Guess]:
        """As the one says whose turn it is."""
        return self.now.draft(sequence)

    def finished(self, plan: StepPlan, result: StepResult, gap: float | None, ahead: bool) -> None:
        """It alone learns."""
        self.now.finished(plan, result, gap, ahead)

    def verified(self, sequence: Underway, drafter: str, asked: int, right: int) -> None:
        """It alone learns."""
        self.now.verified(sequence, drafter, asked, right)

    def forget(self, sequence: Underway) -> None:
        """It alone has met it."""
        self.now.forget(sequence)

    def start(self, config: SchedulerConfig) -> Bench:
        """An engine that does as these say."""
        engine = Engine(self.opened.runner, self.opened.tokenizer, config, speculation=self)
        engine.start()
        return Bench(engine, self.opened)

    def rounds(self, bench: Bench, case: tuple[str, int, float], rounds: int, tokens: int) -> dict[str, list[Run]]:
        """Runs of every policy; which comes first turns. The first round is not counted: they learn in it."""
        runs: dict[str, list[Run]] = {name: [] for name in self.all}
        names = list(self.all)
        for turn in range(rounds + 1):
            order = names[turn % len(names) :] + names[: turn % len(names)]
            for name in order if turn % 2 else order[::-1]:
                self.now = self.all[name]
                run = bench.measure(*case, tokens, turn * case[1])
                if turn:
                    runs[name].append(run)
        return runs


def interval(values: Sequence[float]) -> tuple[float, float]:
    """The median's 95 % interval, by order statistics."""
    ordered, n = sorted(values), len(values)
    reach = int(0.98 * n**0.5)
    return ordered[max(n // 2 - reach, 0)], ordered[min(n // 2 + reach, n - 1)]


def report(name: str, case: tuple[str, int, float], runs: Sequence[Run], plain: Sequence[Run]) -> dict[str, Any]:
    """One policy against plain decoding; a line of the table, printed."""
    rates, plains = ([run.tokens / run.seconds for run in each] for each in (runs, plain))
    ratios = [with_ / without for with_, without in zip(rates, plains, strict=True)]
    accepted, rejected = sum(run.accepted for run in runs), sum(run.rejected for run in runs)
    (low, high), median = interval(ratios), statistics.median(ratios)
    drafts = accepted + rejected
    share = f"{accepted / drafts:.0%} of {drafts}" if drafts else "none"
    task, batch, temperature = case
    print(
        f"| {task} | {batch} | {temperature:g} | {name} | {max(rates):.1f} | {max(rates) / max(plains):.2f} "
        f"| {median:.2f} ({low:.2f} to {high:.2f}) | {share} |",
        flush=True,
    )
    return {
        "task": task,
        "batch": batch,
        "temperature": temperature,
        "policy": name,
        "tok_s": round(max(rates), 1),
        "best_ratio": round(max(rates) / max(plains), 3),
        "median_ratio": round(median, 3),
        "interval": [round(low, 3), round(high, 3)],
        "accepted": accepted,
        "rejected": rejected,
    }


def cases(args: argparse.Namespace) -> list[tuple[str, int, float]]:
    """(task, batch, temperature) of each."""
    return [
        (task, int(batch), float(temperature))
        for task in args.tasks.split(",")
        for batch in args.batches.split(",")
        for temperature in args.temperatures.split(",")
    ]


def run_tasks(args: argparse.Namespace, policies: Policies) -> dict[str, Any]:
    """The controller, and drafting always, against plain decoding."""
    policies.all = {PLAIN: Controller(), "auto": controller(args.speculate, NativeTexts())}
    for depth in args.depths:
        if depth:  # 0 is plain decoding
            drafters = controller(args.speculate, NativeTexts()).drafters[-1:]
            policies.all[f"always {depth}"] = Controller(drafters, always=True, most=depth)
    bench = policies.start(SchedulerConfig())
    print("| task | batch | temperature | policy | tok/s | best | median (95 %) | accepted of drafts |")
    print("|---|---:|---:|---|---:|---:|---:|---:|")
    results = []
    for case in cases(args):
        runs = policies.rounds(bench, case, args.rounds, args.tokens)
        found = [report(name, case, runs[name], runs[PLAIN]) for name in runs if name != PLAIN]
        best = max([1.0, *(each["median_ratio"] for each in found if each["policy"] != "auto")])
        auto = next(each for each in found if each["policy"] == "auto")
        results += found
        if args.depths:
            print(f"|  |  |  | auto of the best fixed | | | {auto['median_ratio'] / best:.3f} | |")
    bench.engine.close()
    return {"results": results}


def run_toggle(args: argparse.Namespace, policies: Policies) -> dict[str, Any]:
    """Turned on and off while answers are written."""
    policies.now = policy = Toggled(controller(args.speculate, NativeTexts()).drafters)
    policies.all = {"toggled": policy}
    bench, results = policies.start(SchedulerConfig()), list[dict[str, Any]]()
    print("| task | batch | temperature | median with / without (95 %) | ratios | accepted of drafts |")
    print("|---|---:|---:|---:|---:|---:|")
    for task, batch, temperature in cases(args):
        found = toggle(bench.engine, policy, bench, task, batch, temperature, args.seconds, args.tokens)
        results.append(found)
        low, high = found["interval"]
        print(
            f"| {task} | {batch} | {temperature:g} | {found['median_ratio']:.3f} ({low:.3f} to {high:.3f}) "
            f"| {found['ratios']} | {found['accepted']} of {found['accepted'] + found['rejected']} |",
            flush=True,
        )
    bench.engine.close()
    return {"results": results}


def run_depths(args: argparse.Namespace, policies: Policies) -> dict[str, Any]:
    """A drafter by depth, beside the bound."""
    policies.all, watched = {PLAIN: Controller()}, dict[str, Watched]()
    for depth in args.depths or [1, 2, 4, 8]:
        drafters = controller(args.speculate, NativeTexts()).drafters[-1:]
        policies.all[f"always {depth}"] = watched[f"always {depth}"] = Watched(drafters, depth)
    policies.all["auto"] = controller(args.speculate, NativeTexts())
    bench = policies.start(SchedulerConfig())
    print("| task | batch | temperature | policy | tok/s | best | median (95 %) | accepted of drafts |")
    print("|---|---:|---:|---|---:|---:|---:|---:|")
    results = []
    for case in cases(args):
        runs = policies.rounds(bench, case, args.rounds, args.tokens)
        results += [report(name, case, runs[name], runs[PLAIN]) for name in runs if name != PLAIN]
    bench.engine.close()
    costs = {name: 1e3 * policy.guessing / max(policy.guesses, 1) for name, policy in watched.items()}
    print("milliseconds a guess: " + ", ".join(f"{name} {cost:.2f}" for name, cost in costs.items()))
    bounds = {}
    if args.speculate.partition(":")[2]:
        target, draft = both(args.model, args.speculate, policies.opened.tokenizer.encode_prompt(CODE + LIST)[:256])
        for temperature in sorted({temperature for _, _, temperature in cases(args)}):
            bounds[f"{temperature:g}"] = found = coupling(target, draft, temperature)
            most, shared = found["maximal_coupling"], found["shared_noise"]
            print(f"temperature {temperature:g}: right at most {most:.3f} of the time, with shared noise {shared:.3f}")
    return {"results": results, "ms_a_guess": costs, "coupling": bounds}


MODES = {"tasks": run_tasks, "toggle": run_toggle, "depths": run_depths}
DEFAULTS = {
    "tasks": {"tasks": ",".join(TASKS), "batches": "1,8", "tokens": 96},
    "toggle": {"tasks": "prose", "batches": "1,2,4,8,16,32", "tokens": 384},
    "depths": {"tasks": "editing,prose", "batches": "1,8", "tokens": 96},
}


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mode", choices=MODES)
    parser.add_argument("model", nargs="?", default="smollm2")
    parser.add_argument("--speculate", default="auto")
    parser.add_argument("--tasks")
    parser.add_argument("--batches")
    parser.add_argument("--temperatures", default="0,0.8")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=25.0, help="toggle: for each case, at least")
    parser.add_argument("--tokens", type=int, help="of each answer")
    parser.add_argument("--depths", default="", help="drafts of one sequence in one step, always so many")
    args = parser.parse_args()
    for name, value in DEFAULTS[args.mode].items():
        if getattr(args, name) is None:
            setattr(args, name, value)
    args.depths = [int(depth) for depth in args.depths.split(",") if depth]
    opened = open_engine(engine_config(args.model, speculate=args.speculate))
    opened.engine.close()  # its runner goes on under engines of this file's own
    found = MODES[args.mode](args, Policies(opened))
    opened.runner.close()
    print(json.dumps({"mode": args.mode, "model": args.model, "speculate": args.speculate, **found}))


if __name__ == "__main__":
    main()
