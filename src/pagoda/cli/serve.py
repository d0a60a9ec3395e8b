"""`pagoda serve`: the OpenAI-compatible endpoint."""

from __future__ import annotations

import logging
from contextlib import closing
from functools import partial
from typing import Annotated

import typer

from pagoda.cli import settled
from pagoda.cli._options import (
    MACHINE,
    MODEL,
    SCHEDULER,
    Activations,
    ChunkTokens,
    KvDir,
    KvDirBudget,
    KvFormat,
    KvMemory,
    MaxModelLen,
    MaxNumSeqs,
    ModelArgument,
    PageSize,
    PrefixCache,
    Quantize,
    Speculate,
    Threads,
)
from pagoda.cli._progress import DownloadBar
from pagoda.config import ServerConfig

_SERVER = ServerConfig()
_PANEL = "Server"


def serve(
    model: ModelArgument = MODEL.model,
    host: Annotated[str, typer.Option(help="Address to listen on.", rich_help_panel=_PANEL)] = _SERVER.host,
    port: Annotated[int, typer.Option(help="TCP port; 0 takes a free one.", rich_help_panel=_PANEL)] = _SERVER.port,
    served_model_name: Annotated[
        str | None, typer.Option(help="The model's name in the API; none is its own.", rich_help_panel=_PANEL)
    ] = None,
    max_output_tokens: Annotated[
        int, typer.Option(help="Cap on the output of any one choice.", rich_help_panel=_PANEL)
    ] = _SERVER.max_output_tokens,
    tenant_pin_tokens: Annotated[
        int, typer.Option(help="Most tokens that one tenant may pin for itself.", rich_help_panel=_PANEL)
    ] = _SERVER.tenant_pin_tokens,
    threads: Threads = None,
    max_num_seqs: MaxNumSeqs = SCHEDULER.max_num_seqs,
    max_model_len: MaxModelLen = None,
    chunk: ChunkTokens = SCHEDULER.chunk,
    page_size: PageSize = MACHINE.page_size,
    kv_format: KvFormat = MODEL.kv_format,
    kv_memory: KvMemory = None,
    kv_dir: KvDir = None,
    kv_dir_budget: KvDirBudget = None,
    activations: Activations = MODEL.activations,
    quantize: Quantize = None,
    prefix_cache: PrefixCache = SCHEDULER.prefix_cache,
    warm: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="Openings, a JSON object on each line, to compute and pin before the server is ready.",
            rich_help_panel="Engine",
        ),
    ] = None,
    speculate: Speculate = SCHEDULER.speculate,
) -> None:
    """Serve a model over HTTP, in OpenAI's format, until Ctrl-C.

    Prints [bold]ready http://127.0.0.1:8000[/bold] once it answers and is warm. The first Ctrl-C lets answers under
    way go on for a few seconds; a second one leaves at once.

    Example: [bold]pagoda serve --port 8080[/bold], then point any OpenAI client at http://127.0.0.1:8080/v1.
    """
    from pagoda.bench.plan import short_lines
    from pagoda.llm import engine_config, open_engine
    from pagoda.obs.metrics import PrometheusObserver
    from pagoda.openings import Warming, read_openings
    from pagoda.server.app import build_app
    from pagoda.server.run import bind, run

    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    config = ServerConfig(
        host=host,
        port=port,
        served_model_name=served_model_name,
        max_output_tokens=max_output_tokens,
        tenant_pin_tokens=tenant_pin_tokens,
    )
    wanted = engine_config(
        model,
        threads=threads,
        max_num_seqs=max_num_seqs,
        max_model_len=max_model_len,
        chunk=chunk,
        page_size=page_size,
        kv_format=kv_format,
        kv_memory=kv_memory,
        kv_dir=kv_dir,
        kv_dir_budget=kv_dir_budget,
        activations=activations,
        quantize=quantize,
        prefix_cache=prefix_cache,
        warm=warm,
        speculate=speculate,
    )
    openings = read_openings(warm) if warm is not None else []
    observer = PrometheusObserver()
    with bind(config) as sock:
        with DownloadBar(model) as progress:
            opened = open_engine(wanted, observer, progress)
        with closing(opened):
            if opened.sizing is not None:
                for line in short_lines(opened.sizing):
                    typer.echo(line, err=True)
            name = served_model_name or opened.name
            observer.serving(name, opened.engine.capacity)
            app = build_app(opened.engine, opened.tokenizer, name, config, observer)
            prepare = None
            if warm is not None:
                warming = Warming(opened.tokenizer, openings, warm)
                prepare = partial(warming.run, opened.engine, lambda done: typer.echo(str(done), err=True))
            settled()
            code = run(app, opened.engine, sock, prepare)
    raise typer.Exit(code)
