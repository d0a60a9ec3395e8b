"""generation_config.json's words on sampling, in GGUF's: `general.sampling.*`. Values are passed on as they stand."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

NAMES = {
    "temperature": "temp",
    "top_p": "top_p",
    "top_k": "top_k",
    "min_p": "min_p",
    "repetition_penalty": "penalty_repeat",
}
"""Hugging Face's name -> GGUF's, after `general.sampling.`."""


def translate_sampling(generation: Mapping[str, Any]) -> dict[str, object]:
    """What the model's makers recommend. `do_sample: false` is temperature 0; without it nothing is meant."""
    if generation.get("do_sample") is False:
        return {"general.sampling.temp": 0.0}
    found = {name: generation.get(theirs) for theirs, name in NAMES.items()}
    return {f"general.sampling.{name}": value for name, value in found.items() if value is not None}
