"""Processor time of one core in the linear kernels, and in whole steps of a model.

Physics: a linear layer of n outputs and k inputs makes n * k products a row. How many a core can make in a second is
set by its multiply-add instruction; what a kernel loses against that goes into unpacking weights, into the scales of
each block of 32, and into fetching. A step of few rows is bound by reading the weights once, one of many by products.
Processor time is measured, not wall time: a busy machine adds only what its neighbours do to caches, memory and clock.
Of many repeats the one at the fifth part counts, as the system's count of another thread's time is now and then late.

    PYTHONPATH=src python benchmarks/kernels.py                  # the kernels, by format and instruction set
    PYTHONPATH=src python benchmarks/kernels.py smollm2          # and the steps of a model

The last line is JSON: {"gmac_s": {isa: {format: {activations: {rows: ..}}}}, "step_ms": {activations: {step: ..}}}.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from pagoda import catalog, quant
from pagoda.backends.cpu import CpuBackend, isas
from pagoda.backends.machine import free_memory
from pagoda.backends.ops import Ops, Step, StoredTensor
from pagoda.llm import engine_config
from pagoda.plan import Chunk, SequenceStart, StepPlan
from pagoda.runner.load import load_runner
from pagoda.runner.sizing import size
from pagoda.types import SamplingParams

OUTPUTS, INPUTS, LAYERS = 1536, 576, 8
ROWS = (1, 4, 16, 256)
FORMATS = ("q4_0", "q4_1", "q8_0")
ACTIVATIONS = ("int16", "int8")
REPEATS = 40
CONTEXT = 16
STEPS = {
    "decode 1": (1, 1),
    "decode 4": (4, 1),
    "decode 16": (16, 1),
    "decode 32": (32, 1),
    "prefill 1 x 512": (1, 512),
    "prefill 16 x 32": (16, 32),
}
"""Name -> sequences, and tokens that a step computes of each. The prefills differ by what attention costs."""


def cpu_seconds(work: Callable[[], Any], repeats: int = REPEATS) -> float:
    """Processor time of one call, all threads together: a fifth of the repeats took less."""
    taken = []
    for _ in range(repeats):
        began = time.process_time()
        work()
        taken.append(time.process_time() - began)
    return sorted(taken)[len(taken) // 5]


def gmac_s(isa: str, form: str, activations: str, rows: int) -> float:
    """Billions of products a second in linear layers of so many rows, which are quantised once for them all."""
    backend = CpuBackend(activations, threads=1, isa=isa)
    random, kind = np.random.default_rng(0), quant.quantizer(form)
    blocks = random.standard_normal((OUTPUTS * INPUTS // kind.block, kind.block), np.float32)
    weight = backend.weight(StoredTensor("w", (OUTPUTS, INPUTS), kind, kind.quantize(blocks).reshape(-1)))

    def layers(ops: Ops) -> None:
        ops.linear(ops.input("x", INPUTS), [weight] * LAYERS)

    program, store = backend.program(layers), backend.kv_store((), (), 16, "f16")
    ids = np.zeros(rows, np.int32)
    inputs = {"x": random.standard_normal((rows, INPUTS), np.float32)}
    step = Step(ids, np.arange(rows, dtype=np.int32), ids, (), np.empty(0, np.int32), inputs)
    return rows * OUTPUTS * INPUTS * LAYERS / cpu_seconds(lambda: program.submit(store, step).wait()) / 1e9


def step_ms(model: str, activations: str) -> dict[str, float]:
    """Milliseconds of processor time of a step, sampling included; decoding sequences have 16 tokens each."""
    most = max(count for count, _ in STEPS.values())
    config = engine_config(model, threads=1, max_model_len=1024, activations=activations)
    with catalog.open_model(model) as file:
        runner = load_runner(file, config, size(file, config, free_memory()))
    tables = [((tuple(range(64 * s, 64 * s + 64))),) for s in range(most)]
    params = SamplingParams(temperature=0.0, seed=0)
    prompt = tuple(range(1000, 1000 + CONTEXT))
    starts = tuple(SequenceStart(s, prompt, params, 0) for s in range(most))
    chunks = tuple(Chunk(s, 0, prompt, tables[s], False) for s in range(most))
    runner.finish(runner.submit(StepPlan(1, chunks, starts)))
    took = {}
    for name, (count, tokens) in STEPS.items():
        start, ids = (0, tuple(range(1000, 1000 + tokens))) if tokens > 1 else (CONTEXT, (1000,))
        plan = StepPlan(2, tuple(Chunk(s, start, ids, tables[s], True) for s in range(count)))
        repeats = REPEATS if tokens == 1 else REPEATS // 4

        def step(plan: StepPlan = plan) -> object:
            return runner.finish(runner.submit(plan))

        took[name] = cpu_seconds(step, repeats) * 1e3
    return took


def main() -> None:
    gmac: dict[str, dict[str, dict[str, dict[str, float]]]] = {}
    for isa in isas()[:-1]:
        gmac[isa] = {
            f: {a: {str(r): round(gmac_s(isa, f, a, r), 1) for r in ROWS} for a in ACTIVATIONS} for f in FORMATS
        }
        for form, found in gmac[isa].items():
            for activations, by_rows in found.items():
                speeds = "  ".join(f"{rows:>3} rows {value:6.1f}" for rows, value in by_rows.items())
                print(f"{isa:7} {form:5} {activations:6} GMAC/s: {speeds}", flush=True)
    steps: dict[str, dict[str, float]] = {}
    for model in sys.argv[1:2]:
        for activations in ACTIVATIONS:
            steps[activations] = {name: round(ms, 2) for name, ms in step_ms(model, activations).items()}
            print(f"{activations:8}", "  ".join(f"{name} {ms:.2f} ms" for name, ms in steps[activations].items()))
    print(json.dumps({"gmac_s": gmac, "step_ms": steps}))


if __name__ == "__main__":
    main()
