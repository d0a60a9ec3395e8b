"""The same work in static batches and in continuous ones.

A static batch is what one gets by handing a model so many prompts at a time: the next ones wait until the longest
answer of the batch is done. Continuous batching lets each newcomer in as soon as anyone is done. What that gives
follows from how much the lengths differ: with answers of one length, nothing; the texts' 5x to 20x are of lengths that
differ much, and of batches padded to the longest prompt, which Pagoda does not do.
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from typing import Any

from pagoda.bench.outcomes import quantile
from pagoda.config import MAX_CHUNK
from pagoda.engine import Engine, iterate, validate
from pagoda.llm import engine_config, open_engine
from pagoda.types import GenerateRequest, SamplingParams

PROMPT = (16, 128)
LONGEST = 256
"""Tokens of the longest answer; most are much shorter."""


def work(engine: Engine, count: int, seed: int = 0) -> list[GenerateRequest]:
    """Requests whose answers' lengths differ as conversations' do: most are short, a few are long."""
    draw = random.Random(seed)
    requests = []
    for number in range(count):
        ids = [draw.randrange(100, engine.capacity.vocabulary) for _ in range(draw.randint(*PROMPT))]
        tokens = min(LONGEST, 1 + int(draw.expovariate(6 / LONGEST)))
        params = SamplingParams(max_tokens=tokens, temperature=0.0, seed=0, ignore_eos=True)
        requests.append(validate(ids, params, engine.capacity, request_id=f"work-{number}", arrival=0.0))
    return requests


def run(engine: Engine, batches: Sequence[Sequence[GenerateRequest]]) -> dict[str, float]:
    """Batches one after another: output tokens per second, and how long answers took from the beginning."""
    began, tokens, ends = time.perf_counter(), 0, list[float]()
    for batch in batches:
        for event in iterate(engine, batch):
            tokens += len(event.token_ids)
            if event.finish is not None:
                ends.append(time.perf_counter() - began)
    seconds = time.perf_counter() - began
    return {
        "tok_s": round(tokens / seconds, 1),
        "seconds": round(seconds, 2),
        "answer_s_p50": round(quantile(ends, 0.5), 2),
        "answer_s_p99": round(quantile(ends, 0.99), 2),
    }


def compare(model: str, *, batch: int = 16, count: int = 96, threads: int | None = None) -> dict[str, Any]:
    """Both ways, on one loaded model, with the prefix cache off: so that neither gains by the other."""
    config = engine_config(
        model,
        threads=threads,
        max_num_seqs=batch,
        max_model_len=512,
        prefix_cache=False,
        chunk=MAX_CHUNK,
        speculate="off",
    )
    opened = open_engine(config)
    try:
        requests = work(opened.engine, count)
        run(opened.engine, [requests[:batch]])  # warm: pages touched, step times learned
        static = run(opened.engine, [requests[i : i + batch] for i in range(0, count, batch)])
        continuous = run(opened.engine, [requests])
    finally:
        opened.close()
    gain = round(continuous["tok_s"] / static["tok_s"], 2)
    return {"batch": batch, "requests": count, "static": static, "continuous": continuous, "gain": gain}
