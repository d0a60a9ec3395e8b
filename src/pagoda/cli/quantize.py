"""`pagoda quantize`: write a model with smaller weights."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from pagoda.cli._progress import DownloadBar

if TYPE_CHECKING:
    from pagoda.quantize import Report

_MODEL_HELP = "A built-in name, or the path of a .gguf file or Hugging Face directory, best with dense weights."
_WORST = 3


def quantize(
    model: Annotated[str, typer.Argument(metavar="IN", help=_MODEL_HELP)],
    out: Annotated[str, typer.Argument(metavar="OUT", help="The .gguf file to write.")],
    format: Annotated[
        str,
        typer.Option(
            "--format", "-f", help="Of layers' matrices: q4_0, q4_1, q4_k, q5_0, q5_1, q5_k, q6_k, q8_0, f16.."
        ),
    ] = "q4_0",
    outer: Annotated[
        str | None,
        typer.Option(help="Of the embedding and the vocabulary projection; none is q8_0, or as the layers if finer."),
    ] = None,
    method: Annotated[
        str,
        typer.Option(help="plain: each number by itself. awq, gptq: so that outputs on a text change least."),
    ] = "plain",
    calibrate: Annotated[
        str | None,
        typer.Option(
            metavar="FILE", help="The text for awq and gptq, such as it will be used for; none is a built-in one."
        ),
    ] = None,
    tokens: Annotated[int, typer.Option(min=1, help="Most tokens of that text to use.")] = 8192,
    threads: Annotated[int | None, typer.Option(help="Worker threads; none takes all cores.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace OUT if it is there.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object: sizes, and each tensor's error.")
    ] = False,
) -> None:
    """Quantise a model: a GGUF file that Pagoda and llama.cpp read, with the same tokens and template.

    Goes layer by layer, so that memory holds little of the model. Interrupted, even killed, the same command goes on
    where it was, to the same bytes; till the end all is in OUT.unfinished, and OUT appears whole or not at all.

    Example: [bold]pagoda quantize ./SmolLM2-135M smollm2-q4.gguf --format q4_0 --method gptq[/bold]
    """
    from pagoda import quantize as room

    options = room.Options(format, outer, method, calibrate, tokens, threads)
    try:
        with DownloadBar(model) as fetching, DownloadBar(out, "writing") as bar:
            report = room.quantize(
                model, out, options, force=force, progress=bar, fetching=fetching,
                tell=lambda note: bar.say(f"note: {note}"),
            )  # fmt: skip
    except KeyboardInterrupt:
        print(f"stopped; the same command goes on from here ({out}.unfinished; remove it to give up)", file=sys.stderr)
        raise typer.Exit(130) from None
    print(json.dumps(report.as_dict) if as_json else _told(report))


def _told(report: Report) -> str:
    """Some lines for people."""
    formats: dict[str, list[int]] = {}
    for tensor in report.tensors:
        entry = formats.setdefault(tensor.became, [0, 0])
        entry[0] += 1
        entry[1] += tensor.bytes
    before, after = report.bytes_before / 1e6, report.bytes_after / 1e6
    lines = [
        f"file     {report.path}",
        f"size     {before:.1f} MB before, {after:.1f} MB after ({before / after:.2f} to 1)",
        f"weights  {report.bits_per_weight:.2f} bits each: "
        + ", ".join(f"{n} tensors in {form} ({size / 1e6:.1f} MB)" for form, (n, size) in formats.items()),
    ]
    changed = sorted((t for t in report.tensors if t.error > 0), key=lambda t: -t.error)
    if changed:
        middle = changed[len(changed) // 2].error
        worst = ", ".join(f"{t.name} {t.error:.1%}" for t in changed[:_WORST])
        lines.append(f"error    {middle:.1%} of its size in the middle tensor; largest: {worst}")
    return "\n".join(lines)
