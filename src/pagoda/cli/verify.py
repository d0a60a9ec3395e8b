"""`pagoda verify`: see for yourself that what Pagoda promises is kept here."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated

import typer

from pagoda.cli import settled
from pagoda.cli._options import MODEL, ModelArgument, Speculate


def verify(
    model: ModelArgument = MODEL.model,
    speculation: Annotated[bool, typer.Option("--speculation", help="Only that drafts change nothing.")] = False,
    sampling: Annotated[bool, typer.Option("--sampling", help="Only that tokens are drawn by their chances.")] = False,
    speculate: Speculate = "ngram",
    tokens: Annotated[int, typer.Option(min=1, help="Tokens of each answer that is compared.")] = 96,
    draws: Annotated[int, typer.Option(min=100, help="First tokens that are drawn of each prompt.")] = 2048,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
) -> None:
    """Check the promises on this machine and this model; the exit code is 1 if one is broken.

    Speculation: the same prompts with drafts and without give the same tokens and log-probabilities, bit for bit.
    Sampling: tokens drawn under many seeds have the probabilities that the model gives them (chi-squared test).

    Example: [bold]pagoda verify --speculation --speculate self:20[/bold]
    """
    from pagoda.bench.verify import check_sampling, check_speculation

    if speculate == "off":
        raise typer.BadParameter("name a drafter: without one there is nothing to compare", param_hint="--speculate")
    both = speculation == sampling
    settled()
    compared = check_speculation(model, speculate, tokens) if speculation or both else []
    drawn = check_sampling(model, draws) if sampling or both else []
    passed = all(c.first_difference is None for c in compared) and all(c.passed for c in drawn)
    if as_json:
        parts = {"speculation": list(map(asdict, compared)), "sampling": list(map(asdict, drawn))}
        typer.echo(json.dumps({"passed": passed, **parts}))
        raise typer.Exit(not passed)
    for check in compared:
        same = "same" if check.first_difference is None else f"DIFFERENT from token {check.first_difference} on"
        drafts = f"{check.accepted} of {check.accepted + check.rejected} drafts right"
        typer.echo(f"{same}: {check.tokens} tokens at temperature {check.temperature:g}, {drafts}: {check.prompt}")
    for draw in drawn:
        word = "as it should be" if draw.passed else "NOT AS IT SHOULD BE"
        typer.echo(
            f"{word}: {draw.draws} first tokens, {draw.outcomes} outcomes, chi-squared {draw.chi_squared:.1f}, "
            f"by chance in {draw.chance:.1%} of cases: {draw.prompt}"
        )
    typer.echo("passed" if passed else "FAILED")
    raise typer.Exit(not passed)
