"""`warm_up`: work by which a new engine learns how long its steps take, before it promises anything."""

from __future__ import annotations

import time

from pagoda.engine.admission import validate
from pagoda.engine.engine import Engine
from pagoda.engine.streams import iterate
from pagoda.plan import Capacity
from pagoda.types import GenerateRequest, SamplingParams, Slo

PROMPTS = (160, 8, 8)
"""Tokens of the prompts: a chunk, and two that decode beside it."""
OUTPUT = 24
"""Tokens of each answer: as many steps."""


def warm_up(engine: Engine) -> None:
    """Run a few requests through a started engine.

    Raises:
        EngineDied: it stopped meanwhile.
    """
    for event in iterate(engine, warm_up_requests(engine.capacity, time.monotonic())):
        if event.error is not None:
            raise event.error


def warm_up_requests(capacity: Capacity, arrival: float) -> list[GenerateRequest]:
    """A few requests whose answers nobody wants; shorter ones for a small context."""
    room = min(capacity.max_model_len - 1, min(capacity.pages) * capacity.page_size - 1)
    params = SamplingParams(max_tokens=min(OUTPUT, max(1, room // 2)), temperature=0, seed=0, ignore_eos=True)
    return [
        validate(
            [(number + place) % capacity.vocabulary for place in range(min(length, max(1, room // 2)))],
            params, capacity, request_id=f"warm-up-{number}", arrival=arrival, slo=Slo(serve_late=True),
        )
        for number, length in enumerate(PROMPTS)
    ]  # fmt: skip
