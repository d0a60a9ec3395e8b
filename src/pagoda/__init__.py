"""Pagoda: an LLM inference engine and server for ordinary CPUs, whose outputs are a pure function of their inputs.

from pagoda import LLM, SamplingParams

with LLM("smollm2") as llm:
    print(llm.generate("The tallest pagoda", SamplingParams(max_tokens=32, seed=1))[0].text)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pagoda.completion import Choice, Completion, Usage
from pagoda.errors import (
    DownloadError,
    EngineDied,
    InvalidConfig,
    InvalidRequest,
    MemoryLimit,
    ModelError,
    ModelFileError,
    Overloaded,
    PagodaError,
    PromptTooLong,
    TargetMissed,
    UnknownModel,
    UnsupportedField,
    UnsupportedModel,
    UserError,
)
from pagoda.types import FinishReason, SamplingParams, Timings, TokenEvent, TokenLogprob

if TYPE_CHECKING:
    from pagoda.llm import LLM

__all__ = [
    "LLM",
    "Choice",
    "Completion",
    "DownloadError",
    "EngineDied",
    "FinishReason",
    "InvalidConfig",
    "InvalidRequest",
    "MemoryLimit",
    "ModelError",
    "ModelFileError",
    "Overloaded",
    "PagodaError",
    "PromptTooLong",
    "SamplingParams",
    "TargetMissed",
    "Timings",
    "TokenEvent",
    "TokenLogprob",
    "UnknownModel",
    "UnsupportedField",
    "UnsupportedModel",
    "Usage",
    "UserError",
    "__version__",
]


def __getattr__(name: str) -> Any:
    """`LLM` brings the whole engine, and the version needs the package's metadata: both only when asked for."""
    if name == "LLM":
        from pagoda.llm import LLM

        return LLM
    if name == "__version__":
        from importlib.metadata import PackageNotFoundError, version

        try:
            return version("pagoda")
        except PackageNotFoundError:  # run from its source tree
            return "0+source"
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
