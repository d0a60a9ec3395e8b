"""Offline speed through the whole engine, without HTTP: prefill, batched decode, load, first token, memory.

What limits each: prefill does about two operations for each weight and token, so it is bound by arithmetic; decoding
one sequence reads every weight for each token, so it is bound by memory bandwidth; a batch shares that reading, until
arithmetic binds again. On a shared machine only the best of many repeats says what the code can do.
"""

from __future__ import annotations

import json
import random
import resource
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from pagoda.config import MAX_CHUNK
from pagoda.engine import iterate, validate
from pagoda.llm import engine_config, open_engine
from pagoda.obs.observer import EngineState, NoObserver
from pagoda.plan import StepPlan, StepResult
from pagoda.types import GenerateRequest, SamplingParams

WINDOW = 4
"""Consecutive steps whose mean time is one measurement of decoding."""
DECODE_TOKENS = 24
"""Tokens each sequence makes in one measurement."""
PREFILLS = (128, 512)
BATCHES = (1, 4, 16, 32)


@dataclass(frozen=True, slots=True)
class _Stamp:
    at: float
    """Seconds, when the step was applied."""
    chunks: int
    rows: int


class StepClock(NoObserver):
    """Notes when each step was done, and what was in it."""

    def __init__(self) -> None:
        self.stamps: list[_Stamp] = []

    def stepped(self, plan: StepPlan, result: StepResult, state: EngineState) -> None:  # noqa: ARG002
        """A step was finished and applied."""
        self.stamps.append(_Stamp(time.perf_counter(), len(plan.chunks), plan.rows))

    def decoding(self, batch: int) -> float | None:
        """Least mean seconds of `WINDOW` consecutive steps of one token for each of `batch` sequences."""
        best, run = None, 0
        gaps: list[float] = []
        for before, after in pairwise(self.stamps):
            pure = all(s.chunks == s.rows == batch for s in (before, after))
            run = run + 1 if pure else 0
            gaps.append(after.at - before.at)
            if run >= WINDOW:
                mean = sum(gaps[-WINDOW:]) / WINDOW
                best = mean if best is None else min(best, mean)
        return best


class OfflineBench:
    """A loaded model, measured through its engine.

    Args:
        model: as `pagoda serve` takes it.
        threads: native threads; None is all that this process may use.
        longest: most tokens of a sequence in any measurement.
        most: most sequences at once.
        prefix_cache: whether prefixes are kept. Prompts that are timed are new ones, so none is found either way.
    """

    def __init__(
        self,
        model: str,
        *,
        threads: int | None = None,
        longest: int = 1024,
        most: int = max(BATCHES),
        prefix_cache: bool = True,
    ) -> None:
        self._clock = StepClock()
        self._random = random.Random(0)
        self._serial = 0
        self._prompts: dict[tuple[int, int], list[list[int]]] = {}
        config = engine_config(
            model,
            threads=threads,
            max_num_seqs=most,
            max_model_len=longest,
            speculate="off",
            chunk=MAX_CHUNK,
            prefix_cache=prefix_cache,
        )
        began = time.perf_counter()
        self._opened = open_engine(config, self._clock)
        self.load_s = time.perf_counter() - began

    def _prompt(self, tokens: int) -> list[int]:
        vocabulary = self._opened.engine.capacity.vocabulary
        return [self._random.randrange(100, vocabulary) for _ in range(tokens)]

    def _request(self, prompt: list[int], new_tokens: int) -> GenerateRequest:
        self._serial += 1
        params = SamplingParams(max_tokens=new_tokens, temperature=0.0, seed=0, ignore_eos=True)
        return validate(
            prompt,
            params,
            self._opened.engine.capacity,
            request_id=f"bench-{self._serial}",
            arrival=time.monotonic(),
        )

    def prefill(self, tokens: int) -> float:
        """Seconds from handing over one fresh prompt of random tokens to its first token."""
        request = self._request(self._prompt(tokens), 1)
        began = time.perf_counter()
        for _ in iterate(self._opened.engine, [request]):
            pass
        return time.perf_counter() - began

    def decode(self, context: int, batch: int) -> float:
        """Seconds of one step for `batch` sequences that each have `context` tokens of their own.

        Asked again, it takes the same prompts, which the prefix cache may still have: they are not measured.
        """
        self._clock.stamps.clear()
        if (context, batch) not in self._prompts:
            self._prompts[context, batch] = [self._prompt(context) for _ in range(batch)]
        filling = context * batch // MAX_CHUNK  # steps in which those who came first already decode
        requests = [self._request(prompt, DECODE_TOKENS + filling) for prompt in self._prompts[context, batch]]
        for _ in iterate(self._opened.engine, requests):
            pass
        best = self._clock.decoding(batch)
        if best is None:
            raise RuntimeError(f"{batch} sequences of {context} tokens never ran together: give the KV more memory")
        return best

    def close(self) -> None:
        """Stop the engine."""
        self._opened.close()


def first_token_s(model: str) -> float:
    """Seconds from starting a process of `pagoda generate` to the first token it prints."""
    command = [sys.executable, "-m", "pagoda", "generate", "Hello", "--model", model, "--max-tokens", "4"]
    began = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL) as process:
        assert process.stdout
        first = process.stdout.read(1)
        taken = time.perf_counter() - began
        process.stdout.read()
    if not first or process.returncode:
        raise RuntimeError(f"`pagoda generate` printed nothing or failed with status {process.returncode}")
    return taken


def measure(
    model: str,
    *,
    rounds: int = 5,
    threads: int | None = None,
    prefills: Sequence[int] = PREFILLS,
    batches: Sequence[int] = BATCHES,
    prefix_cache: bool = True,
) -> dict[str, Any]:
    """Everything, best of `rounds`: tokens per second, seconds, MiB. The keys are those of `pagoda bench offline`."""
    bench = OfflineBench(model, threads=threads, most=max(batches), prefix_cache=prefix_cache)
    prefill = {n: float("inf") for n in prefills}
    decode = {b: float("inf") for b in batches}
    for _ in range(rounds):
        for n in prefills:
            prefill[n] = min(prefill[n], *(bench.prefill(n) for _ in range(max(1, 1024 // n))))
        for b in batches:
            decode[b] = min(decode[b], bench.decode(16, b))
    bench.close()
    rss_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {
        "prefill_tok_s": {str(n): round(n / s, 1) for n, s in prefill.items()},
        "decode_tok_s": {str(b): round(b / s, 1) for b, s in decode.items()},
        "load_s": round(bench.load_s, 3),
        "first_token_s": round(min(first_token_s(model) for _ in range(rounds)), 3),
        "rss_mb": round(rss_mb, 1),
    }


def as_json(result: dict[str, Any]) -> str:
    """One line."""
    return json.dumps(result)
