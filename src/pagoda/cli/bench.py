"""`pagoda bench`: how fast this machine runs a model."""

from __future__ import annotations

from typing import Annotated

import typer

from pagoda.cli import settled
from pagoda.cli._options import PrefixCache

bench = typer.Typer(no_args_is_help=True, add_completion=False)


@bench.callback()
def _group() -> None:
    """Measure how fast this machine runs a model.

    Try: [bold]pagoda bench offline --json[/bold]
    """


@bench.command()
def offline(
    model: Annotated[
        str, typer.Argument(help="A built-in name, or the path of a .gguf file or Hugging Face directory.")
    ] = "smollm2",
    rounds: Annotated[int, typer.Option(min=1, help="Repeats of each measurement; the best one counts.")] = 5,
    threads: Annotated[int | None, typer.Option(min=1, help="Native threads; all allowed cores if not given.")] = None,
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
