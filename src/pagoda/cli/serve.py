"""`pagoda serve`: the OpenAI-compatible endpoint."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

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
from pagoda.config import EngineConfig, ServerConfig
from pagoda.types import SamplingParams

if TYPE_CHECKING:
    from pagoda.server.keys import KeyFile

_SERVER = ServerConfig()
_PANEL = "Server"
_SLO = "Latency"


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
    api_keys: Annotated[
        Path | None, typer.Option(help="The file of API keys; pagoda keys makes it.", rich_help_panel=_PANEL)
    ] = None,
    insecure: Annotated[
        bool, typer.Option(help="Serve other machines without keys.", rich_help_panel=_PANEL)
    ] = _SERVER.insecure,
    drain_timeout: Annotated[
        float, typer.Option(help="Seconds that answers may go on after the first Ctrl-C.", rich_help_panel=_PANEL)
    ] = _SERVER.drain_timeout,
    sampling_defaults: Annotated[
        str,
        typer.Option(
            help="Where a request says nothing: model, as the model's file recommends, or openai, as its API does.",
            rich_help_panel=_PANEL,
        ),
    ] = _SERVER.sampling_defaults,
    metrics_compat: Annotated[
        str | None, typer.Option(help="vllm: its metrics' names besides Pagoda's.", rich_help_panel=_PANEL)
    ] = None,
    ttft_target_ms: Annotated[
        float | None,
        typer.Option(
            "--ttft-target", help="TTFT to keep, in ms; what cannot keep it is refused.", rich_help_panel=_SLO
        ),
    ] = None,
    tpot_target_ms: Annotated[
        float | None,
        typer.Option("--tpot-target", help="TPOT to keep, in ms: prompts wait for it.", rich_help_panel=_SLO),
    ] = None,
    max_queued: Annotated[
        int, typer.Option(help="Most requests under way; one more is refused.", rich_help_panel=_SLO)
    ] = SCHEDULER.max_queued,
    max_queued_tokens: Annotated[
        int, typer.Option(help="Most prompt tokens of requests under way.", rich_help_panel=_SLO)
    ] = SCHEDULER.max_queued_tokens,
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
    from pagoda.llm import engine_config
    from pagoda.server.keys import KeyFile

    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    config = ServerConfig(
        host=host,
        port=port,
        served_model_name=served_model_name,
        max_output_tokens=max_output_tokens,
        api_keys=None if api_keys is None else str(api_keys),
        insecure=insecure,
        drain_timeout=drain_timeout,
        sampling_defaults=sampling_defaults,
        metrics_compat=metrics_compat,
        tenant_pin_tokens=tenant_pin_tokens,
    )
    keys = None if api_keys is None else KeyFile(api_keys)
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
        ttft_target_ms=ttft_target_ms,
        tpot_target_ms=tpot_target_ms,
        max_queued=max_queued,
        max_queued_tokens=max_queued_tokens,
        speculate=speculate,
    )
    raise typer.Exit(_serve(config, wanted, keys))


def _serve(config: ServerConfig, wanted: EngineConfig, keys: KeyFile | None) -> int:
    """Open the engine, warm it, and answer until told to stop; the exit code."""
    from pagoda.bench.plan import short_lines
    from pagoda.engine.warm_up import warm_up
    from pagoda.llm import open_engine
    from pagoda.obs.metrics import PrometheusObserver
    from pagoda.openings import Warming, read_openings
    from pagoda.server.app import build_app
    from pagoda.server.identity import one_tenant
    from pagoda.server.run import bind, run

    warm, target = wanted.scheduler.warm, wanted.scheduler.ttft_target_ms
    openings = read_openings(warm) if warm is not None else []
    observer = PrometheusObserver(config.metrics_compat)
    with bind(config) as sock:
        with DownloadBar(wanted.model.model) as progress:
            opened = open_engine(wanted, observer, progress)
        with closing(opened):
            if opened.sizing is not None:
                for line in short_lines(opened.sizing):
                    typer.echo(line, err=True)
            advice = opened.recommended if config.sampling_defaults == "model" else {}
            if advice:
                told = ", ".join(f"{name} {value:g}" for name, value in advice.items())
                typer.echo(f"sampling   {told} where a request says nothing, as the model recommends", err=True)
            name = config.served_model_name or opened.name
            observer.serving(name, opened.engine.capacity)
            app = build_app(
                opened.engine, opened.tokenizer, name, config, observer, keys or one_tenant, SamplingParams(**advice)
            )
            prepare: list[Callable[[], None]] = []
            if target is not None:
                prepare.append(partial(warm_up, opened.engine))
            if warm is not None:
                warming = Warming(opened.tokenizer, openings, warm)
                prepare.append(partial(warming.run, opened.engine, lambda done: typer.echo(str(done), err=True)))
            settled()
            reload = None if keys is None else keys.reload
            return run(app, opened.engine, sock, _one_by_one(prepare), config.drain_timeout, reload)


def _one_by_one(works: list[Callable[[], None]]) -> Callable[[], None] | None:
    """Several works as one; None if there are none."""

    def all_of_them() -> None:
        for work in works:
            work()

    return all_of_them if works else None
