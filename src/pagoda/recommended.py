"""How a model's makers recommend to sample it, read from its file: what applies where a request says nothing.

GGUF's keys are `general.sampling.*`; a Hugging Face directory's generation_config.json is shown under them too.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from pagoda.errors import InvalidRequest
from pagoda.types import SamplingParams

KEYS = {
    "temperature": "temp",
    "top_p": "top_p",
    "top_k": "top_k",
    "min_p": "min_p",
    "repetition_penalty": "penalty_repeat",
}
"""Field of `SamplingParams` -> key after `general.sampling.`."""
_log = logging.getLogger(__name__)


def recommended(metadata: Mapping[str, object]) -> dict[str, Any]:
    """Fields of `SamplingParams` that the file has a word on.

    A value out of its range is left out, with a warning: it is advice, and no reason not to serve the model.
    """
    found: dict[str, Any] = {}
    for field, key in KEYS.items():
        value = metadata.get(f"general.sampling.{key}")
        if value is None:
            continue
        try:
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise InvalidRequest("it is no number", field)
            number: Any = max(0, int(value)) if field == "top_k" else float(value)
            SamplingParams(**{field: number})
        except (InvalidRequest, ValueError, OverflowError) as error:
            _log.warning("the model recommends %s = %.40r, which is not followed: %s", field, value, error)
        else:
            found[field] = number
    return found
