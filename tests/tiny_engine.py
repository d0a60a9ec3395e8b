"""An engine of a tiny model, opened and closed, and two ways to ask it: for tests that compare engines."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from typing import Any

from pagoda.engine import iterate, validate
from pagoda.llm import Opened, engine_config, open_engine
from pagoda.types import FinishReason, SamplingParams

_NAMES = count()
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


def answers(
    made: Opened, prompts: Sequence[tuple[int, ...]], together: bool = False, tenant: str = ""
) -> tuple[list[Any], list[int]]:
    """What each prompt gets, bit for bit, and how much of it was found."""
    requests = [
        validate(
            prompt, params, made.engine.capacity, request_id=f"{next(_NAMES)}", arrival=time.monotonic(), tenant=tenant
        )
        for params in (GREEDY, SAMPLED)
        for prompt in prompts
    ]
    found, told = {}, {}
    for batch in [requests] if together else [[each] for each in requests]:
        for event in iterate(made.engine, batch):
            told.setdefault((event.request_id, event.index), []).append((event.token_ids, event.logprobs))
            if event.finish is not None:
                assert event.finish is FinishReason.LENGTH, event.error
                found[event.request_id] = event.cached_tokens
    order = [(request.id, index) for request in requests for index in range(request.params.n)]
    return [told[key] for key in order], [found[request.id] for request in requests]
