"""`pagoda plan`: what serving a model here will take, each number with its arithmetic."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from pagoda.cli._options import (
    MACHINE,
    MODEL,
    SCHEDULER,
    Activations,
    ChunkTokens,
    KvFormat,
    KvMemory,
    MaxModelLen,
    MaxNumSeqs,
    ModelArgument,
    PageSize,
    Quantize,
    Threads,
    parse_bytes,
)
from pagoda.cli._progress import DownloadBar


def plan(
    model: ModelArgument = MODEL.model,
    memory: Annotated[
        int | None,
        typer.Option(
            parser=parse_bytes, metavar="BYTES", help="Free memory to plan for, such as 4GiB; none is here's."
        ),
    ] = None,
    measure: Annotated[bool, typer.Option("--measure", help="Measure read bandwidth, in about a second.")] = False,
    threads: Threads = None,
    max_num_seqs: MaxNumSeqs = SCHEDULER.max_num_seqs,
    max_model_len: MaxModelLen = None,
    chunk: ChunkTokens = SCHEDULER.chunk,
    page_size: PageSize = MACHINE.page_size,
    kv_format: KvFormat = MODEL.kv_format,
    kv_memory: KvMemory = None,
    activations: Activations = MODEL.activations,
    quantize: Quantize = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
) -> None:
    """Work out memory, pages, sequences and the limit of decoding from the model file's header, and start nothing.

    The engine starts with the same numbers. The options are those of [bold]pagoda serve[/bold].

    Example: [bold]pagoda plan smollm2 --memory 2GiB --measure[/bold]
    """
    from pagoda.bench.plan import plan_model
    from pagoda.llm import engine_config

    config = engine_config(
        model,
        threads=threads,
        max_num_seqs=max_num_seqs,
        max_model_len=max_model_len,
        chunk=chunk,
        page_size=page_size,
        kv_format=kv_format,
        kv_memory=kv_memory,
        activations=activations,
        quantize=quantize,
    )
    with DownloadBar(model) as progress:
        made = plan_model(config, memory=memory, measure=measure, progress=progress)
    if as_json:
        typer.echo(json.dumps(made.as_dict()))
        return
    for line in made.lines():
        typer.echo(line)
