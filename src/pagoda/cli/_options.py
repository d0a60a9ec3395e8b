"""Options that several commands share, and how a command opens a model."""

from __future__ import annotations

import re
from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pagoda.cli import settled
from pagoda.cli._progress import DownloadBar
from pagoda.config import MachineConfig, ModelConfig, SchedulerConfig
from pagoda.types import SamplingParams

if TYPE_CHECKING:
    from pagoda.llm import LLM

MODEL = ModelConfig()
MACHINE = MachineConfig()
SCHEDULER = SchedulerConfig()

_MODEL_HELP = (
    "A built-in name, the path of a .gguf file or Hugging Face directory, or an id: OWNER/NAME[@REVISION][:Q4_K_M]."
)
_SAMPLING = "Sampling"
_ENGINE = "Engine"

ModelArgument = Annotated[str, typer.Argument(help=_MODEL_HELP)]
ModelOption = Annotated[str, typer.Option("--model", "-m", help=_MODEL_HELP)]

DEFAULT_TEMPERATURE = 0.7
"""Of models that recommend none."""

MaxTokens = Annotated[
    int, typer.Option("--max-tokens", "-n", help="Most tokens to generate.", rich_help_panel=_SAMPLING)
]
Temperature = Annotated[
    float | None,
    typer.Option(
        help=f"0 takes the likeliest token; more is more varied, to 2. This and those below: as the model recommends, "
        f"else {DEFAULT_TEMPERATURE} and all tokens.",
        rich_help_panel=_SAMPLING,
    ),
]
TopP = Annotated[
    float | None,
    typer.Option(help="Keep the likeliest tokens that together reach this probability.", rich_help_panel=_SAMPLING),
]
TopK = Annotated[
    int | None, typer.Option(help="Keep this many of the likeliest tokens; 0 keeps all.", rich_help_panel=_SAMPLING)
]
MinP = Annotated[
    float | None,
    typer.Option(help="Drop tokens less likely than this part of the likeliest.", rich_help_panel=_SAMPLING),
]
Seed = Annotated[
    int | None,
    typer.Option(help="The same seed gives the same answer; none draws one.", rich_help_panel=_SAMPLING),
]
Threads = Annotated[
    int | None,
    typer.Option(help="Worker threads; none takes the cores this process may use.", rich_help_panel=_ENGINE),
]
MaxModelLen = Annotated[
    int | None,
    typer.Option(help="Longest sequence in tokens; none is the model's own length.", rich_help_panel=_ENGINE),
]
MaxNumSeqs = Annotated[int, typer.Option(help="Most sequences in one step.", rich_help_panel=_ENGINE)]
ChunkTokens = Annotated[
    int | None,
    typer.Option(
        "--chunk", help="Most tokens computed in one step; none chooses for each, by its time.", rich_help_panel=_ENGINE
    ),
]
PageSize = Annotated[int, typer.Option(help="Token slots of a KV page; a power of two.", rich_help_panel=_ENGINE)]
KvFormat = Annotated[
    str, typer.Option(help="How keys and values are stored: f16, int8, int4 or f32.", rich_help_panel=_ENGINE)
]
Activations = Annotated[
    str, typer.Option(help="What linear layers read: int16, int8 (faster, coarser) or f32.", rich_help_panel=_ENGINE)
]
Quantize = Annotated[
    str | None,
    typer.Option(
        help="What dense weights become as they are loaded: q8_0, q4_k, q4_1 or q4_0.", rich_help_panel=_ENGINE
    ),
]

Speculate = Annotated[
    str,
    typer.Option(
        help="Whose guesses steps verify: auto, ngram, self:K, draft:MODEL or off. Changes no output.",
        rich_help_panel=_ENGINE,
    ),
]

PrefixCache = Annotated[
    bool,
    typer.Option(
        "--prefix-cache/--no-prefix-cache",
        help="Keep what was computed and find it again as the beginning of later prompts.",
        rich_help_panel=_ENGINE,
    ),
]

_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30}


def parse_bytes(text: str) -> int:
    """A number of bytes such as 500000000, 512M or 2GiB; the units are powers of 1024."""
    found = re.fullmatch(r"(\d+)\s*([KMG]?)(?:iB|B)?", text.strip(), re.IGNORECASE)
    if found is None:
        raise typer.BadParameter(f"{text!r} is not a number of bytes such as 512M or 2GiB")
    return int(found[1]) * _UNITS[found[2].upper()]


KvMemory = Annotated[
    int | None,
    typer.Option(
        parser=parse_bytes,
        metavar="BYTES",
        help="Memory for keys and values, such as 512M; none is what --max-num-seqs needs, within 1 GiB.",
        rich_help_panel=_ENGINE,
    ),
]
KvDir = Annotated[
    str | None,
    typer.Option(
        metavar="DIRECTORY",
        help="Keep prefixes in this directory, so that a restart is warm; none keeps them in memory only.",
        rich_help_panel=_ENGINE,
    ),
]
KvDirBudget = Annotated[
    int | None,
    typer.Option(
        parser=parse_bytes,
        metavar="BYTES",
        help="Most bytes in --kv-dir, such as 20G; none is 4 GiB, or half of what is free there.",
        rich_help_panel=_ENGINE,
    ),
]


@contextmanager
def open_llm(model: str, **options: Any) -> Generator[LLM, None, None]:
    """The model, fetched with a progress bar if need be, and closed in the end."""
    from pagoda.llm import LLM

    with DownloadBar(model) as progress:
        llm = LLM(model, progress=progress, **options)
    settled()
    with llm:
        yield llm


def sampling(**given: Any) -> dict[str, Any]:
    """The options that were given.

    Raises:
        InvalidRequest: a value is out of its range; so it is known before a model is loaded.
    """
    named = {name: value for name, value in given.items() if value is not None}
    SamplingParams(**named)
    return named


def with_recommended(llm: LLM, given: dict[str, Any]) -> SamplingParams:
    """What was given, else what the model's makers recommend."""
    return SamplingParams(**{"temperature": DEFAULT_TEMPERATURE, **llm.advice, **given})
