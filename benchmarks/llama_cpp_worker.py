"""llama.cpp as a worker beside other engines: llama-cpp-python's low-level `llama_decode`, then an argmax.

    ITS_PYTHON benchmarks/llama_cpp_worker.py MODEL.gguf [--threads N] [--ubatch N]

Runs in an environment of its own that has llama-cpp-python and NumPy (for figures worth comparing: built from source
on this machine). The protocol is `worker.py`'s. There is no sampler, scheduler or server in the figures: they are
what the library itself can do. Each sequence has a stream of keys and values of its own, in f16. Prompts are filled
once for each size; before another measurement the tokens that the last one added are dropped.
"""

from __future__ import annotations

import argparse
import ctypes
import random
import time
from importlib.metadata import version
from typing import Any

import llama_cpp as lc
import numpy as np
from worker import STEPS, best_window, private_stdout, serve

MOST_ROWS = 2048
"""Of one call: longer prompts come in pieces."""
UNIT = 256
"""A context's length is a multiple of this."""

Row = tuple[int, int, int, bool]
"""Token, position, sequence, and whether its logits are wanted."""


class LlamaCpp:
    """A loaded model and its contexts."""

    def __init__(self, model: str, threads: int, ubatch: int) -> None:
        self._silent = lc.llama_log_callback(lambda _level, _text, _data: None)
        lc.llama_log_set(self._silent, ctypes.c_void_p(0))
        lc.llama_backend_init()
        self._model = lc.llama_model_load_from_file(model.encode(), lc.llama_model_default_params())
        if not self._model:
            raise SystemExit(f"llama.cpp could not load {model}")
        self._vocabulary = lc.llama_vocab_n_tokens(lc.llama_model_get_vocab(self._model))
        self._threads, self._ubatch = threads, ubatch
        self._random = random.Random(0)
        self._contexts: dict[tuple[int, int], Any] = {}

    def prefill(self, tokens: int) -> float:
        """Seconds of one fresh prompt."""
        context, _ = self._context(1, tokens)
        lc.llama_memory_clear(lc.llama_get_memory(context), True)
        return self._fill(context, 0, tokens)

    def decode(self, tokens: int, batch: int) -> float:
        """Seconds of one step of `batch` sequences that have `tokens` tokens each."""
        context, is_new = self._context(batch, tokens + STEPS)
        memory = lc.llama_get_memory(context)
        for sequence in range(batch):
            if is_new:
                self._fill(context, sequence, tokens)
            else:
                lc.llama_memory_seq_rm(memory, sequence, tokens, -1)
        steps = []
        for step in range(STEPS):
            steps.append(self._run(context, [(t, tokens + step, s, True) for s, t in enumerate(self._ids(batch))]))
        return best_window(steps)

    def _ids(self, count: int) -> list[int]:
        return [self._random.randrange(100, self._vocabulary) for _ in range(count)]

    def _context(self, sequences: int, tokens: int) -> tuple[Any, bool]:
        """One that has room, and whether it is new."""
        key = (sequences, tokens)
        is_new = key not in self._contexts
        if is_new:
            params = lc.llama_context_default_params()
            params.n_ctx = sequences * (-(-tokens // UNIT) * UNIT)
            params.n_seq_max, params.kv_unified = sequences, False
            params.n_batch, params.n_ubatch = MOST_ROWS, self._ubatch
            params.n_threads = params.n_threads_batch = self._threads
            context = lc.llama_init_from_model(self._model, params)
            if not context:
                raise MemoryError(f"no context for {sequences} sequences of {tokens} tokens")
            self._contexts[key] = context
        return self._contexts[key], is_new

    def _fill(self, context: Any, sequence: int, tokens: int) -> float:
        rows = [(token, i, sequence, i == tokens - 1) for i, token in enumerate(self._ids(tokens))]
        return sum(self._run(context, rows[i : i + MOST_ROWS]) for i in range(0, tokens, MOST_ROWS))

    def _run(self, context: Any, rows: list[Row]) -> float:
        """Seconds of one call and of taking the greedy tokens."""
        batch = lc.llama_batch_init(len(rows), 0, 1)
        batch.n_tokens = len(rows)
        for i, (token, position, sequence, wanted) in enumerate(rows):
            batch.token[i], batch.pos[i], batch.n_seq_id[i] = token, position, 1
            batch.seq_id[i][0], batch.logits[i] = sequence, wanted
        began = time.perf_counter()
        code = lc.llama_decode(context, batch)
        for i in (i for i, row in enumerate(rows) if row[3] and not code):
            np.ctypeslib.as_array(lc.llama_get_logits_ith(context, i), (self._vocabulary,)).argmax()
        taken = time.perf_counter() - began
        lc.llama_batch_free(batch)
        if code:
            raise RuntimeError(f"llama_decode returned {code}")
        return taken


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--ubatch", type=int, default=512, help="rows that the library computes at once")
    args = parser.parse_args()
    out = private_stdout()
    engine = LlamaCpp(args.model, args.threads, args.ubatch)
    system = lc.llama_print_system_info().decode().replace(" = 1", "").strip(" |")
    serve(out, {"llama-cpp-python": version("llama_cpp_python"), "system": system}, engine.prefill, engine.decode)


if __name__ == "__main__":
    main()
