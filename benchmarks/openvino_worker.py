"""OpenVINO GenAI as a worker beside other engines: its continuous batching pipeline, stepped from here.

    ITS_PYTHON benchmarks/openvino_worker.py MODEL.gguf [--threads N] [--tokens N]

Runs in an environment of its own that has openvino-genai, which reads GGUF itself. The protocol is `worker.py`'s. Its
scheduler and sampler are in the figures. Prefix caching is off, so every prompt is computed.
"""

from __future__ import annotations

import argparse
import os
import random
import time
from importlib.metadata import version
from typing import Any

import numpy as np
import openvino as ov
import openvino_genai as genai
from worker import STEPS, WINDOW, best_window, private_stdout, serve

BLOCK = 32
"""Tokens of one of its KV blocks on a CPU."""
ROWS = 4096
"""Most tokens of one step."""
SEQUENCES = 64


class OpenVino:
    """A loaded model."""

    def __init__(self, model: str, threads: int, tokens: int) -> None:
        config = genai.SchedulerConfig()
        config.num_kv_blocks = tokens // BLOCK
        config.max_num_batched_tokens = ROWS
        config.max_num_seqs = SEQUENCES
        config.enable_prefix_caching = False
        self._pipe = genai.ContinuousBatchingPipeline(model, config, "CPU", {"INFERENCE_NUM_THREADS": threads})
        self._random = random.Random(0)
        self._serial = 0

    def prefill(self, tokens: int) -> float:
        """Seconds of one fresh prompt to its first token."""
        began = time.perf_counter()
        handle = self._add(tokens, 1)
        while not handle.can_read():
            self._pipe.step()
        taken = time.perf_counter() - began
        self._drain()
        return taken

    def decode(self, tokens: int, batch: int) -> float:
        """Seconds of one step of `batch` sequences that have `tokens` tokens each."""
        filling = 1 + tokens * batch // ROWS  # steps in which some already decode
        handles = [self._add(tokens, STEPS + filling) for _ in range(batch)]
        runs: list[list[float]] = [[]]
        while self._pipe.has_non_finished_requests():
            began = time.perf_counter()
            self._pipe.step()
            taken = time.perf_counter() - began
            if all([_read(handle) == 1 for handle in handles]):
                runs[-1].append(taken)
            else:
                runs.append([])
        # The first step of a run may have computed the end of a prompt.
        return min(best_window(run[1:]) for run in runs if len(run) > WINDOW)

    def _add(self, tokens: int, new: int) -> Any:
        self._serial += 1
        config = genai.GenerationConfig()
        config.max_new_tokens = config.min_new_tokens = new
        config.ignore_eos, config.do_sample = True, False
        prompt = [self._random.randrange(100, 40_000) for _ in range(tokens)]
        return self._pipe.add_request(self._serial, ov.Tensor(np.array([prompt], np.int64)), config)

    def _drain(self) -> None:
        while self._pipe.has_non_finished_requests():
            self._pipe.step()


def _read(handle: Any) -> int:
    """Tokens that one request has made since it was read last."""
    made = 0
    while handle.can_read():
        made += sum(len(output.generated_ids) for output in handle.read().values())
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=12_288, help="room for keys and values, all sequences together")
    args = parser.parse_args()
    out = private_stdout()
    engine = OpenVino(args.model, args.threads, args.tokens)
    serve(out, {name: version(name) for name in ("openvino", "openvino-genai")}, engine.prefill, engine.decode)
    out.flush()
    os._exit(0)  # its threads do not always end by themselves


if __name__ == "__main__":
    main()
