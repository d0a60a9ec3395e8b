"""Pagoda beside other engines, cell by cell: the tables of the performance page, each with what was wanted.

    python benchmarks/table.py --rounds 8 \\
        --peer "llama.cpp=ITS_PYTHON benchmarks/llama_cpp_worker.py {model} --threads {threads}" \\
        --peer "OpenVINO=OTHER_PYTHON benchmarks/openvino_worker.py {model} --threads {threads}" \\
        --pair "as shipped=smollm2.gguf" --pair "its Q4_0=smollm2.gguf,smollm2-q4_0.gguf" \\
        --want "llama.cpp/as shipped/prefill512=4.5" --want "OpenVINO/*/*=2"

A pair is a file for Pagoda and one for the peers (the same, if only one is named); `--want` takes patterns, the last
that fits counts. A peer is any command that speaks the protocol of `worker.py`. For each pair all engines are loaded,
and in each round every cell is measured on each of them right after the other, in an order that rotates, so that a
slow spell of the machine hits all alike. Of each cell there are the best of all rounds, and the median over rounds of
the ratio to Pagoda; the latter is held against what was wanted. An engine that cannot do a cell has its error in the
table. Beside them stand this machine's limits, measured before each round, and Pagoda's share of them. The last line
is JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path
from statistics import median
from typing import Any

from engines import Cell, EngineError, Worker, cell_named
from limits import Limits, Work

CELLS = "prefill512 decode16b1,16,32 decode4096b1 decode1024b8"
OURS = "{python} {here}/peer_worker.py {model} --threads {threads}"
PAGODA = "Pagoda"
REST_S = 0.03
"""Between two measurements: threads of the engine before stop spinning."""
PROBE = 100_000


@dataclass(frozen=True)
class Pair:
    """A file for Pagoda and one for the peers."""

    name: str
    ours: str
    theirs: str


@dataclass
class Taken:
    """Everything measured for one pair."""

    pair: Pair
    seconds: dict[str, dict[str, list[float | None]]] = field(default_factory=dict)
    """Engine -> cell -> seconds a token of each round; None where it failed."""
    errors: dict[str, dict[str, str]] = field(default_factory=dict)
    """Engine -> cell -> why there is no figure."""
    versions: dict[str, Any] = field(default_factory=dict)

    def best(self, engine: str, cell: str) -> float | None:
        """Least seconds a token."""
        return min((s for s in self.seconds.get(engine, {}).get(cell, []) if s), default=None)

    def ratio(self, engine: str, cell: str) -> float | None:
        """How many times as fast Pagoda is: the median over rounds in which both were measured."""
        ours, theirs = (self.seconds.get(name, {}).get(cell, []) for name in (PAGODA, engine))
        both = [b / a for a, b in zip(ours, theirs, strict=False) if a and b]
        return median(both) if both else None


def probe() -> float:
    """Seconds of a fixed piece of work: how fast the machine is at this moment."""
    began = time.perf_counter()
    sum(i * i for i in range(PROBE))
    return time.perf_counter() - began


def measure(workers: Sequence[Worker], cells: Sequence[Cell], turn: int, taken: Taken) -> list[float]:
    """One round: each cell on each engine. The probes' seconds."""
    probes = []
    for cell in cells:
        for i in range(len(workers)):
            worker = workers[(turn + i) % len(workers)]
            found: dict[str, float] = {}
            errors = taken.errors.setdefault(worker.name, {})
            if cell.results[0] not in errors:
                time.sleep(REST_S)
                probes.append(probe())
                try:
                    found = worker.ask(cell)
                except EngineError as error:  # and it is not asked for this again
                    errors.update(dict.fromkeys(cell.results, str(error)))
            for name in cell.results:
                taken.seconds.setdefault(worker.name, {}).setdefault(name, []).append(found.get(name))
    return probes


def run_pair(pair: Pair, peers: dict[str, str], cells: Sequence[Cell], limits: Limits, args: Any) -> Taken:
    """Load every engine, measure, and let go of them."""
    taken, workers, probes = Taken(pair), [], []
    for name, command in {PAGODA: args.ours, **peers}.items():
        model = pair.ours if name == PAGODA else pair.theirs
        fields = {"python": sys.executable, "here": str(Path(__file__).parent), "threads": args.threads}
        try:
            worker = Worker(name, command, {**fields, "model": model}, args.patience)
        except EngineError as error:
            taken.errors[name] = dict.fromkeys((n for cell in cells for n in cell.results), str(error))
            continue
        workers.append(worker)
        taken.versions[name] = worker.versions
    for turn in range(args.rounds):
        due = [c for c in cells if not c.is_long or turn % args.long_every == 0]
        limits.measure()
        probes += measure(workers, due, turn, taken)
        print(f"{pair.name}: round {turn + 1} of {args.rounds}", file=sys.stderr, flush=True)
    for worker in workers:
        worker.close()
    if probes:
        taken.versions["probe_ms"] = [round(1e3 * f(probes), 2) for f in (min, median, max)]
    return taken


def wanted(wants: Sequence[tuple[str, float]], engine: str, pair: str, cell: str) -> float | None:
    """The ratio that the last pattern which fits asks for."""
    return next((ratio for pattern, ratio in reversed(wants) if fnmatch(f"{engine}/{pair}/{cell}", pattern)), None)


def _rate(seconds: float | None) -> str:
    return "-" if seconds is None else f"{1 / seconds:,.1f}" if seconds > 0.01 else f"{1 / seconds:,.0f}"


def rows(taken: Taken, engine: str, cells: Sequence[str], wants: Sequence[tuple[str, float]]) -> Iterator[str]:
    """Of one table: both rates, best by best, the median ratio, and what was wanted."""
    for cell in cells:
        ours, theirs, ratio = taken.best(PAGODA, cell), taken.best(engine, cell), taken.ratio(engine, cell)
        error = taken.errors.get(engine, {}).get(cell) or taken.errors.get(PAGODA, {}).get(cell)
        want = wanted(wants, engine, taken.pair.name, cell)
        best = f"{theirs / ours:.2f}x" if ours and theirs else "-"
        told = f"{ratio:.2f}x" if ratio else "-"
        aim = "" if want is None else f"{want:g}x"
        verdict = "" if want is None or ratio is None else "yes" if ratio >= want else "no"
        note = "" if not error else " " + error.replace("|", "/").replace("\n", " ")[:120]
        yield f"| {cell} | {_rate(ours)} | {_rate(theirs)}{note} | {best} | {told} | {aim} | {verdict} |"


def tables(all_taken: Sequence[Taken], peers: Sequence[str], cells: Sequence[str], args: Any) -> Iterator[str]:
    """Every table, in Markdown."""
    for taken in all_taken:
        for engine in peers:
            files = Path(taken.pair.ours).name, Path(taken.pair.theirs).name
            yield f"\n### {taken.pair.name}: Pagoda ({files[0]}) and {engine} ({files[1]}), {args.rounds} rounds\n"
            yield f"| tokens/s | Pagoda | {engine} | best by best | median of ratios | wanted | reached |"
            yield "|---|---:|---:|---:|---:|---:|---|"
            yield from rows(taken, engine, cells, args.want)


def shares(all_taken: Sequence[Taken], limits: Limits) -> Iterator[dict[str, Any]]:
    """Of each pair's file and each cell that a limit binds: how much of it Pagoda uses."""
    for taken in all_taken:
        work = Work(taken.pair.ours)
        for cell in sorted(taken.seconds.get(PAGODA, {})):
            if (seconds := taken.best(PAGODA, cell)) and (share := limits.share(work, cell, seconds)):
                yield {"pair": taken.pair.name, "cell": cell, **share}


def share_table(found: Sequence[dict[str, Any]], limits: Limits) -> Iterator[str]:
    """Pagoda against the machine."""
    yield f"\n### Pagoda and the limits of this machine: {limits}\n"
    yield "| | cell | does | at most | share |"
    yield "|---|---|---:|---:|---:|"
    for s in found:
        yield f"| {s['pair']} | {s['cell']} | {s['does']:.1f} {s['unit']} | {s['limit']:.1f} | {s['share']:.0%} |"


def as_json(all_taken: Sequence[Taken], found: Sequence[dict[str, Any]], limits: Limits, args: Any) -> str:
    """Everything, in one line."""
    pairs = [
        {
            "pair": t.pair.name,
            "ours": Path(t.pair.ours).name,
            "theirs": Path(t.pair.theirs).name,
            "tok_s": {e: {c: round(1 / s, 2) for c in cells if (s := t.best(e, c))} for e, cells in t.seconds.items()},
            "ratio": {e: {c: round(r, 3) for c in cells if (r := t.ratio(e, c))} for e, cells in t.seconds.items()},
            "seconds": t.seconds,
            "errors": t.errors,
            "versions": t.versions,
        }
        for t in all_taken
    ]
    return json.dumps(
        {"rounds": args.rounds, "threads": args.threads, "pairs": pairs, "machine": limits.as_dict(), "shares": found}
    )


def _named(text: str) -> tuple[str, str]:
    name, found, rest = text.partition("=")
    if not (name and found and rest):
        raise argparse.ArgumentTypeError(f"NAME=VALUE is expected, got {text!r}")
    return name, rest


def _pair(text: str) -> Pair:
    name, files = _named(text)
    ours, _, theirs = files.partition(",")
    return Pair(name, ours, theirs or ours)


def _want(text: str) -> tuple[str, float]:
    pattern, _, ratio = text.rpartition("=")
    return pattern, float(ratio)


def parse(arguments: Sequence[str] | None = None) -> Any:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pair", type=_pair, action="append", required=True, metavar="NAME=OURS[,THEIRS]")
    parser.add_argument("--peer", type=_named, action="append", default=[], metavar="NAME=COMMAND")
    parser.add_argument("--want", type=_want, action="append", default=[], metavar="PEER/PAIR/CELL=RATIO")
    parser.add_argument("--ours", default=OURS, metavar="COMMAND", help="Pagoda's own worker")
    parser.add_argument("--cells", default=CELLS, help=f"default: {CELLS}")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument(
        "--long-every", type=int, default=1, help="rounds between those with contexts of 1,000 and more"
    )
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--patience", type=float, default=900.0, help="seconds to wait for one answer")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> None:
    args = parse(arguments)
    cells = [cell_named(text) for text in args.cells.split()]
    limits, peers = Limits(args.threads), dict(args.peer)
    all_taken = [run_pair(pair, peers, cells, limits, args) for pair in args.pair]
    names = [name for cell in cells for name in cell.results]
    found = list(shares(all_taken, limits))
    for line in [*tables(all_taken, list(peers), names, args), *share_table(found, limits)]:
        print(line)
    print(as_json(all_taken, found, limits, args))


if __name__ == "__main__":
    main()
