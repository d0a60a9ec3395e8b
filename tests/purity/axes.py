"""The axes of the matrix: one table. A new feature that must change no bit is a new line of `AXES` and, in `play`, the
one place that turns its value into a setting.

`world` names what outputs may depend on (model, activations, KV format): each has its own baseline. `params` and
`prompt` say what the first request asks for; the others of a batch go round the same lists. All the rest must not
matter.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pagoda.backends.cpu import isas
from pagoda.types import SamplingParams

from .worlds import WORLDS

PARAMS = {
    "greedy": SamplingParams(temperature=0, logprobs=0),
    "greedy with penalties": SamplingParams(
        temperature=0, repetition_penalty=1.3, frequency_penalty=0.4, presence_penalty=0.2, logprobs=3
    ),
    "sampled": SamplingParams(temperature=0.8, seed=11, logprobs=2),
    "every cut": SamplingParams(
        temperature=1.4, top_k=50, top_p=0.9, min_p=0.02, frequency_penalty=-0.3, seed=2**64 - 1, logprobs=20
    ),
    "top-p alone": SamplingParams(temperature=1.1, top_p=0.7, seed=2**33, logprobs=0),
    "min-p alone, no log-probabilities": SamplingParams(temperature=1.5, min_p=0.1, repetition_penalty=0.9, seed=5),
    "three choices": SamplingParams(temperature=1.2, n=3, seed=77, logprobs=1),
    "three greedy choices": SamplingParams(temperature=0, n=3, logprobs=0, presence_penalty=1.0),
}

PROMPTS: Sequence[int] = (1, 15, 16, 17, 31, 33, 255, 256, 257, 300)
"""Lengths around every page and every span of 256 keys."""
SHORT, LONG = PROMPTS[:6], PROMPTS[6:]

AXES: dict[str, Sequence[Any]] = {
    "world": tuple(name for name, world in WORLDS.items() if not (world.family or world.checkpoint)),
    "prompt": PROMPTS,
    "params": tuple(PARAMS),
    "isa": isas(),
    "threads": (1, 2, 3),
    "fuse": (True, False),
    "page_size": (1, 4, 16, 32),
    "pages": ("plenty", "scarce"),
    "chunk": (1, 3, 16, 17, 64, 512, None),
    "steps_in_flight": (1, 2, 3),
    "batch": (1, 2, 5, 17),
    "arrival": ("together", "one by one"),
    "policy": ("no targets", "targets and priorities", "tenants"),
    "prefixes": ("off", "kept", "kept and met again", "restored from disk"),
    "drafts": ("none", "known", "two of three right", "trees", "n-grams", "first layer", "a model of its own"),
}
