"""`pagoda bench`: how fast this machine runs a model, and what the clients of a server see."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pagoda.cli import settled
from pagoda.cli._options import PrefixCache

if TYPE_CHECKING:
    from pagoda.bench.workloads import Ask

bench = typer.Typer(no_args_is_help=True, add_completion=False)


@bench.callback()
def _group() -> None:
    """Measure how fast this machine runs a model, and what the clients of a server see.

    Try: [bold]pagoda bench offline --json[/bold]
    """


@bench.command()
def offline(
    model: Annotated[
        str, typer.Argument(help="A built-in name, or the path of a .gguf file or Hugging Face directory.")
    ] = "smollm2",
    rounds: Annotated[int, typer.Option(min=1, help="Repeats of each measurement; the best one counts.")] = 5,
    threads: Annotated[int | None, typer.Option(min=1, help="Native threads; all allowed cores if not given.")] = None,
    static: Annotated[bool, typer.Option(help="Compare continuous batching with static batches instead.")] = False,
    prefix_cache: PrefixCache = True,
    as_json: Annotated[bool, typer.Option("--json", help="End with one line of JSON and print nothing else.")] = False,
) -> None:
    """Prefill and batched decode through the whole engine, load time, first token of a fresh process, memory.

    Each figure is the best of several rounds: on a busy machine that is what the code can do.

    Try: [bold]pagoda bench offline smollm2 --rounds 3[/bold]
    """
    from pagoda.bench.offline import as_json as line
    from pagoda.bench.offline import measure

    settled()
    if static:
        _static(model, threads, as_json)
        return
    result = measure(model, rounds=rounds, threads=threads, prefix_cache=prefix_cache)
    if not as_json:
        for tokens, speed in result["prefill_tok_s"].items():
            typer.echo(f"prefill of {tokens:>4} tokens     {speed:10.1f} tok/s")
        for batch, speed in result["decode_tok_s"].items():
            typer.echo(f"decode of {batch:>4} sequences   {speed:10.1f} tok/s")
        typer.echo(f"load                       {result['load_s']:10.3f} s")
        typer.echo(f"first token, fresh process {result['first_token_s']:10.3f} s")
        typer.echo(f"most memory                {result['rss_mb']:10.1f} MiB")
    else:
        typer.echo(line(result))


def _static(model: str, threads: int | None, as_json: bool) -> None:
    from pagoda.bench.static import compare

    result = compare(model, threads=threads)
    if not as_json:
        for name in ("static", "continuous"):
            each = result[name]
            typer.echo(
                f"{name:<11} {each['tok_s']:8.1f} tok/s in {each['seconds']:7.2f} s; an answer was there after "
                f"{each['answer_s_p50']:.2f} s (p50), {each['answer_s_p99']:.2f} s (p99)"
            )
        typer.echo(f"gain        {result['gain']:8.2f}")
    typer.echo(json.dumps(result))


_LOAD = "Load"
_TARGETS = "Targets"
Span = Annotated[str, typer.Option(metavar="N or LEAST:MOST", help="Tokens of a prompt, about.", rich_help_panel=_LOAD)]
OutputSpan = Annotated[str, typer.Option(metavar="N or LEAST:MOST", help="Tokens of an answer.", rich_help_panel=_LOAD)]
Trace = Annotated[
    Path | None, typer.Option(help="Arrivals and lengths from a CSV or Mooncake JSONL file.", rich_help_panel=_LOAD)
]
Lengths = Annotated[float, typer.Option(help="Multiplies the trace's lengths.", rich_help_panel=_LOAD)]
Speed = Annotated[float, typer.Option(help="Quickens the trace's arrivals.", rich_help_panel=_LOAD)]
Longest = Annotated[
    int, typer.Option(help="Tokens that prompt and answer of a trace are cut to.", rich_help_panel=_LOAD)
]
Limit = Annotated[int | None, typer.Option(help="At most so many of the trace's requests.", rich_help_panel=_LOAD)]
TtftTarget = Annotated[
    float | None, typer.Option(help="TTFT within which an answer is good, in ms.", rich_help_panel=_TARGETS)
]
TpotTarget = Annotated[
    float | None, typer.Option(help="TPOT within which an answer is good, in ms.", rich_help_panel=_TARGETS)
]


def parse_span(text: str) -> tuple[int, int]:
    """`100` or `32:256` as a pair of numbers of tokens."""
    low, _, high = text.partition(":")
    if not (low.isdecimal() and (high or low).isdecimal() and 0 < int(low) <= int(high or low)):
        raise typer.BadParameter(f"{text!r} is neither a number of tokens nor two such as 32:256")
    return int(low), int(high or low)


@bench.command()
def serve(
    url: Annotated[str, typer.Argument(help="The server, such as http://127.0.0.1:8000.")],
    concurrency: Annotated[
        int | None, typer.Option(min=1, help="Requests under way at any time.", rich_help_panel=_LOAD)
    ] = None,
    requests: Annotated[int, typer.Option(min=1, help="How many with --concurrency.", rich_help_panel=_LOAD)] = 64,
    rate: Annotated[
        float | None, typer.Option(help="Arrivals a second, at random times (Poisson).", rich_help_panel=_LOAD)
    ] = None,
    seconds: Annotated[float, typer.Option(help="How long with --rate.", rich_help_panel=_LOAD)] = 60.0,
    burst: Annotated[
        int | None, typer.Option(min=1, help="Requests at once, every --every seconds.", rich_help_panel=_LOAD)
    ] = None,
    every: Annotated[float, typer.Option(help="Seconds between bursts.", rich_help_panel=_LOAD)] = 10.0,
    bursts: Annotated[int, typer.Option(min=1, help="How many bursts.", rich_help_panel=_LOAD)] = 6,
    trace: Trace = None,
    lengths: Lengths = 1.0,
    speed: Speed = 1.0,
    longest: Longest = 2048,
    limit: Limit = None,
    prompt: Span = "32:256",
    output: OutputSpan = "32",
    shared: Annotated[int, typer.Option(min=0, help="Tokens all prompts begin with.", rich_help_panel=_LOAD)] = 0,
    turns: Annotated[int, typer.Option(min=1, help="Turns of each conversation.", rich_help_panel=_LOAD)] = 1,
    seed: Annotated[int, typer.Option(help="Of lengths, texts and times.", rich_help_panel=_LOAD)] = 0,
    ttft_target: TtftTarget = None,
    tpot_target: TpotTarget = None,
    model: Annotated[str | None, typer.Option(help="The model's name; the first one listed if not given.")] = None,
    api_key: Annotated[
        str | None, typer.Option(help="Sent as a bearer token; PAGODA_API_KEY in the environment if not given.")
    ] = None,
    chat: Annotated[bool, typer.Option(help="Ask as chats instead of plain completions.")] = False,
    ignore_eos: Annotated[bool, typer.Option(help="Ask for answers of full length; not every server can.")] = True,
    as_json: Annotated[bool, typer.Option("--json", help="Print nothing but one line of JSON.")] = False,
) -> None:
    """Put load on any OpenAI-compatible server, and say what its clients see.

    One of --concurrency, --rate, --burst and --trace. The last line is JSON.

    Try: [bold]pagoda bench serve http://127.0.0.1:8000 --concurrency 8[/bold]
    """
    from pagoda.bench.workloads import Shape, closed, poisson, read_trace
    from pagoda.bench.workloads import bursts as in_bursts

    shape = Shape(parse_span(prompt), parse_span(output), shared, turns)
    loads: dict[str, Any] = {"--concurrency": concurrency, "--rate": rate, "--burst": burst, "--trace": trace}
    if sum(value is not None for value in loads.values()) != 1:
        raise typer.BadParameter(f"give one of {', '.join(loads)}")
    if trace is not None:
        asks = read_trace(trace, lengths=lengths, speed=speed, longest=longest)[:limit]
    elif rate is not None:
        asks = poisson(rate, seconds, shape, seed)
    elif burst is not None:
        asks = in_bursts(burst, every, bursts, shape, seed)
    else:
        asks = closed(requests, shape, seed)
    api_key = os.environ.get("PAGODA_API_KEY", "") if api_key is None else api_key
    result = _put_load(url, api_key, model, chat, ignore_eos, asks, concurrency, as_json, (ttft_target, tpot_target))
    typer.echo(json.dumps(result))


def _put_load(
    url: str, api_key: str, model: str | None, chat: bool, ignore_eos: bool, asks: list[Ask], concurrency: int | None,
    quiet: bool, targets: tuple[float | None, float | None],
) -> dict[str, Any]:  # fmt: skip
    import asyncio

    from rich.progress import Progress

    from pagoda.bench.client import Client
    from pagoda.bench.outcomes import report
    from pagoda.bench.serve import Target, play

    async def run() -> dict[str, Any]:
        client = Client(url, api_key)
        target = Target(client, model or await client.model(), chat, ignore_eos)
        with Progress(transient=True, disable=quiet) as progress:
            bar = progress.add_task("requests", total=len(asks))
            outcomes = await play(target, asks, concurrency, lambda done, _: progress.update(bar, completed=done))
        ttft, tpot = (None if each is None else each / 1000 for each in targets)
        return {"model": target.model, **report(outcomes, ttft, tpot)}

    result = asyncio.run(run())
    if not quiet:
        _table(result)
    return result


def _table(result: dict[str, Any]) -> None:
    typer.echo(f"{'':<12}{'p50':>10}{'p90':>10}{'p99':>10}")
    for name in ("ttft_ms", "itl_ms", "tpot_ms"):
        if name in result:
            typer.echo(f"{name:<12}" + "".join(f"{value:>10.1f}" for value in result[name].values()))
    for name in ("requests", "served", "refused", "kept", "output_tokens_per_s", "goodput_per_s"):
        if name in result:
            typer.echo(f"{name:<22}{result[name]:>12}")


@bench.command()
def simulate(
    trace: Annotated[Path, typer.Argument(help="A CSV of arrival, prompt and output tokens, or Mooncake's JSONL.")],
    lengths: Lengths = 1.0,
    speed: Speed = 1.0,
    longest: Longest = 2048,
    limit: Limit = None,
    ttft_target: TtftTarget = None,
    tpot_target: TpotTarget = None,
    max_num_seqs: Annotated[int, typer.Option(min=1, help="Most sequences in one step.")] = 64,
    chunk: Annotated[int | None, typer.Option(min=1, help="Most tokens in one step; none chooses for each.")] = None,
    pages: Annotated[int, typer.Option(min=1, help="KV pages of 16 tokens.")] = 4096,
) -> None:
    """Play a trace against the real scheduler and cache on a made-up machine: hours take seconds.

    The machine is about two cores with the default model. The last line is JSON.

    Try: [bold]pagoda bench simulate trace.csv --ttft-target 2000[/bold]
    """
    from pagoda.bench.outcomes import report
    from pagoda.bench.simulate import Simulation
    from pagoda.bench.workloads import read_trace
    from pagoda.config import SchedulerConfig

    asks = read_trace(trace, lengths=lengths, speed=speed, longest=longest)[:limit]
    config = SchedulerConfig(
        max_num_seqs=max_num_seqs, chunk=chunk, ttft_target_ms=ttft_target, tpot_target_ms=tpot_target
    )
    outcomes = Simulation(config, pages=pages, longest=longest).play(asks)
    ttft, tpot = (None if each is None else each / 1000 for each in (ttft_target, tpot_target))
    result = {"lengths": lengths, "speed": speed, **report(outcomes, ttft, tpot)}
    _table(result)
    typer.echo(json.dumps(result))
