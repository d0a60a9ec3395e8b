"""How far Pagoda's logits of the default model lie from the golden ones, in each arithmetic.

    python tests/golden/measure_smollm2.py [MODEL.gguf]        # a table; the last line is JSON

Sequences go through the model file's own reader, `models` and the native backend; every row is sampled. Knows nothing
of engine and runner: what they add must change no bit, which tests/purity proves.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from golden_logits import Comparison, Golden, log_softmax

from pagoda import catalog
from pagoda.backends.cpu import CpuBackend, rope_table
from pagoda.backends.ops import Floats, Step
from pagoda.catalog import ModelFile
from pagoda.models import build, read_config
from pagoda.runner.runner import whole_model

GOLDEN = Path(__file__).with_name("smollm2_logits.npz")
POSITIONS = 512
"""More than the longest sequence has."""
PAGE_SIZE = 16
ARITHMETICS = (("f32", "f32"), ("int16", "f16"), ("int8", "f16"))
"""Activations and KV format: the one for checking, the default, and the fastest."""
KV_INTEGERS = ("int8", "int4")
"""KV formats that are measured against f16, with int16 activations: what the cache costs, apart from all else."""


class Net:
    """The default model in one arithmetic."""

    def __init__(self, path: Path, activations: str, kv_format: str) -> None:
        self._backend = CpuBackend(activations=activations)
        with ModelFile(path) as source:
            config = read_config(source)
            self._model = build(source, config, self._backend.weights, rope_table, POSITIONS)
        self._program = self._backend.program(lambda ops: whole_model(self._model, ops))
        self._kv_format = kv_format

    def logits(self, ids: Sequence[int], chunks: Sequence[int]) -> Floats:
        """All logits [n, V] of a sequence from position 0, fed in chunks of these lengths; the last one is repeated."""
        pages = np.arange(-(-len(ids) // PAGE_SIZE), dtype=np.int32)[::-1].copy()
        groups = self._model.groups
        kv = self._backend.kv_store(groups, [len(pages)] * len(groups), PAGE_SIZE, self._kv_format)
        parts, start, sizes = [], 0, list(chunks)
        while start < len(ids):
            end = min(len(ids), start + (sizes.pop(0) if len(sizes) > 1 else sizes[0]))
            step = Step(
                ids=np.array(ids[start:end], np.int32),
                positions=np.arange(start, end, dtype=np.int32),
                sequences=np.zeros(end - start, np.int32),
                tables=(pages[None],) * len(groups),
                sampled=np.arange(end - start, dtype=np.int32),
            )
            parts.append(self._program.submit(kv, step, outputs=True).wait().outputs["logits"])
            start = end
        return np.concatenate(parts)


@dataclass(frozen=True)
class Figures:
    """What is said of one arithmetic."""

    difference: float
    """Largest |log-probability - reference| over the stored tokens of all positions."""
    clear_disagreements: int
    """Positions whose greedy token differs though the reference's gap exceeds 4e-3."""
    kl: float
    """Mean estimate of KL(reference || ours)."""
    agreement: float
    """Share of positions with the reference's greedy token."""
    positions: int


CLEAR = 4e-3
"""Gap of log-probabilities over which a difference of 2e-3 cannot change the greedy token."""


def figures(found: Sequence[Comparison]) -> Figures:
    """Over all sequences."""
    same, gap, difference, kl = (
        np.concatenate([getattr(c, name) for c in found]) for name in ("same", "gap", "difference", "kl")
    )
    return Figures(
        difference=float(difference.max()),
        clear_disagreements=int((~same & (gap > CLEAR)).sum()),
        kl=float(kl.mean()),
        agreement=float(same.mean()),
        positions=len(same),
    )


def measure(golden: Golden, net: Net) -> Figures:
    """Each sequence in one step."""
    return figures([golden.compare(rows, net.logits(ids, [len(ids)])) for _, rows, ids in golden.sequences()])


@dataclass(frozen=True)
class KVFigures:
    """What a KV format costs: this run against one of the same arithmetic with f16."""

    kl: float
    """Mean KL(f16 || ours), exact, over the whole vocabulary."""
    worst: float
    """The largest of any position."""
    agreement: float
    """Share of positions with the same greedy token."""


def measure_kv(golden: Golden, net: Net, f16: Net) -> KVFigures:
    """Each sequence in one step."""
    kl, same = [], []
    for _, _, ids in golden.sequences():
        ours, theirs = (log_softmax(n.logits(ids, [len(ids)])) for n in (net, f16))
        kl.append((np.exp(theirs) * (theirs - ours)).sum(1))
        same.append(theirs.argmax(1) == ours.argmax(1))
    found = np.concatenate(kl)
    return KVFigures(float(found.mean()), float(found.max()), float(np.concatenate(same).mean()))


def kv_line(kv_format: str, f: KVFigures) -> str:
    """One KV format's figures, for people."""
    return f"{kv_format} KV against f16: mean KL {f.kl:.2e}, worst {f.worst:.2e}, top-1 {f.agreement:.2%}"


def line(activations: str, kv_format: str, f: Figures) -> str:
    """One arithmetic's figures, for people."""
    return (
        f"{activations} activations, {kv_format} KV: largest difference {f.difference:.2e}, "
        f"mean KL {f.kl:.2e}, top-1 {f.agreement:.2%} of {f.positions}"
    )


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, nargs="?", help="SmolLM2-135M-Instruct, Q4_1; default: the built-in")
    path = parser.parse_args().model or catalog.resolve("smollm2")
    golden = Golden(GOLDEN)
    report: dict[str, dict[str, float]] = {}
    for activations, kv_format in ARITHMETICS:
        f = measure(golden, Net(path, activations, kv_format))
        print(line(activations, kv_format, f))
        report[f"{activations}/{kv_format}"] = {"difference": f.difference, "kl": f.kl, "agreement": f.agreement}
    f16 = Net(path, "int16", "f16")
    for kv_format in KV_INTEGERS:
        k = measure_kv(golden, Net(path, "int16", kv_format), f16)
        print(kv_line(kv_format, k))
        report[f"int16/{kv_format}, against f16"] = {"kl": k.kl, "worst": k.worst, "agreement": k.agreement}
    print(json.dumps(report))


if __name__ == "__main__":
    main()
