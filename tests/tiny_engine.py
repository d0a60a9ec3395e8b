"""An engine of a tiny model, opened and closed, and two ways to ask it: for tests that compare engines."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pagoda.llm import Opened, engine_config, open_engine
from pagoda.types import SamplingParams

GREEDY = SamplingParams(max_tokens=9, temperature=0, logprobs=3, ignore_eos=True)
SAMPLED = SamplingParams(max_tokens=9, seed=5, n=2, logprobs=3, ignore_eos=True, repetition_penalty=1.1)


@contextmanager
def opened(path: str, **options: Any) -> Iterator[Opened]:
    """One thread, little memory; `options` as for `LLM`."""
    made = open_engine(engine_config(path, **{"threads": 1, "kv_memory": 2**19, **options}))
    try:
        yield made
    finally:
        made.close()
