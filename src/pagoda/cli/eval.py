"""`pagoda eval`: what a weight or KV format does to a model, and whether it may be trusted."""

from __future__ import annotations

import json
import re
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pagoda.cli import settled
from pagoda.cli._options import MODEL, Activations, ModelArgument, Threads
from pagoda.cli._progress import DownloadBar, WorkBar

if TYPE_CHECKING:
    from pagoda.gate.evaluate import Evaluation
    from pagoda.gate.verdict import Verdict


def eval(
    model: ModelArgument = MODEL.model,
    against: Annotated[
        str | None, typer.Option(metavar="MODEL", help="Compare with this model; none is the model itself, f16 KV.")
    ] = None,
    kv_format: Annotated[
        str | None, typer.Option(help="KV formats to judge, such as int8,int4; none is these two.")
    ] = None,
    weights: Annotated[
        str | None, typer.Option(help="What dense weights become, such as q8_0,q4_k; none leaves them.")
    ] = None,
    lengths: Annotated[
        str | None, typer.Option(help="Context lengths in tokens; none is 512,2048,8000 as far as they fit.")
    ] = None,
    mixed: Annotated[
        bool, typer.Option("--mixed", help="For a format that fails, look for the layers that need the finer one.")
    ] = False,
    quick: Annotated[bool, typer.Option("--quick", help="A third of the work; the verdict is not kept.")] = False,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE.svg", help="Draw the measures by context length.", dir_okay=False)
    ] = None,
    listed: Annotated[
        bool, typer.Option("--list", help="Show the verdicts that are kept, and measure nothing.")
    ] = False,
    activations: Activations = MODEL.activations,
    threads: Threads = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
) -> None:
    """Measure what a weight or KV format does to a model beside the finer one.

    Perplexity, divergence and agreement over texts of several lengths, needles found in them, continuations that end in
    a loop, and questions with choices. Verdicts are kept: [bold]--kv-format auto[/bold] and [bold]--quantize
    auto[/bold] of other commands take the smallest format that passed. The exit code is 1 if a format that was named,
    or a model beside another, fails.

    Example: [bold]pagoda eval smollm2 --kv-format int8,int4 --plot kv.svg[/bold]
    """
    from pagoda.gate import shelf
    from pagoda.gate.bench import Wanted
    from pagoda.gate.chart import draw
    from pagoda.gate.evaluate import evaluate

    if listed:
        _list(shelf.every(), as_json)
        return
    if plot is not None and plot.suffix != ".svg":
        raise typer.BadParameter(f"the plot is an SVG file: {plot} must end with .svg", param_hint="--plot")
    wanted = Wanted(
        kv_formats=_formats(kv_format),
        weights=_formats(weights),
        against=against,
        lengths=None if lengths is None else tuple(map(_length, lengths.split(","))),
        mixed=mixed,
        quick=quick,
        activations=activations,
        threads=threads,
    )
    settled()
    with DownloadBar(model) as fetching, WorkBar(f"measuring {model}") as bar:
        found = evaluate(model, wanted, fetching=fetching, tell=bar)
    if plot is not None:
        plot.write_text(draw(found), "utf-8")
    report = {
        "model": model,
        "against": found.against,
        "reference": list(map(asdict, found.reference)),
        "quick": quick,
        "verdicts": [_plain(verdict) for verdict in found.verdicts],
    }
    if not as_json:
        _show(model, found)
    typer.echo(json.dumps(report))
    named = bool(wanted.kv_formats or wanted.weights or against)
    raise typer.Exit(named and not all(verdict.passed for verdict in found.verdicts))


def _formats(text: str | None) -> tuple[str, ...]:
    """`int8,int4:0,5` are two: a format begins with a letter."""
    return tuple(filter(None, dict.fromkeys(re.split(r",(?=[a-z])", (text or "").replace(" ", "")))))


def _length(word: str) -> int:
    if not word.strip().isdigit():
        raise typer.BadParameter(f"{word!r} is not a number of tokens", param_hint="--lengths")
    return int(word)


def _plain(verdict: Verdict) -> dict[str, Any]:
    return {"format": verdict.format, "passed": verdict.passed, **asdict(verdict)}


def _list(verdicts: list[Verdict], as_json: bool) -> None:
    """What is kept, oldest first."""
    if as_json:
        typer.echo(json.dumps([_plain(verdict) for verdict in verdicts]))
        return
    if not verdicts:
        typer.echo("no verdicts are kept: pagoda eval MODEL measures one")
    for verdict in verdicts:
        failed = ", ".join(finding.measure for finding in verdict.findings if not finding.passed)
        said = f"FAILED ({failed})" if failed else "passed"
        kl = f"mean KL {verdict['divergence'].value:.2e} against {verdict.against}"
        typer.echo(f"{verdict.date[:10]}  {said}: {verdict.format} of {verdict.model}, {kl}")


def _show(model: str, found: Evaluation) -> None:
    """A table by length, then each verdict's findings."""
    typer.echo(f"{model} against {found.against}")
    typer.echo(f"{'':24} {'tokens':>7} {'mean KL':>9} {'same':>7} {'perplexity':>10} {'needles':>8} {'loops':>6}")
    rows = [(found.against, found.reference), *((v.format, v.lengths) for v in found.verdicts)]
    for name, lengths in rows:
        for i, at in enumerate(lengths):
            label = "" if i else name if len(name) <= 24 else f"...{name[-21:]}"
            needles, loops = f"{at.needles}/{at.of_needles}", f"{at.loops}/{at.of_loops}"
            typer.echo(
                f"{label:24} {at.tokens:7} {at.divergence:9.2e} {at.agreement:7.1%} {at.perplexity:10.2f} "
                f"{needles:>8} {loops:>6}"
            )
    for verdict in found.verdicts:
        typer.echo(f"\n{verdict.format}: {'passed' if verdict.passed else 'FAILED'}")
        for finding in verdict.findings:
            typer.echo(f"  {'ok    ' if finding.passed else 'FAILED'} {finding}")
