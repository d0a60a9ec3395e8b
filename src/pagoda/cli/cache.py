"""`pagoda cache`: look at a running server's KV cache, warm it, clear it."""

from __future__ import annotations

import json
import os
from itertools import groupby
from textwrap import wrap
from typing import Annotated, Any

import typer

URL = Annotated[str, typer.Argument(help="Where the server is, such as http://127.0.0.1:8000.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]
MAP_WIDTH = 100

cache = typer.Typer(no_args_is_help=True, add_completion=False)


@cache.callback()
def _group() -> None:
    """Look at a running server's KV cache, warm it, clear it.

    These are for administrators: on the server's own machine, or with an administrator's key in $PAGODA_API_KEY.

    Example: [bold]pagoda cache inspect http://127.0.0.1:8000[/bold]
    """


@cache.command()
def inspect(url: URL, as_json: Json = False) -> None:
    """Show pages by state, kept prefixes, the hit rate, misses by cause, and pins.

    With [bold]--json[/bold] the map has a letter for each page: [bold].[/bold] free, [bold]c[/bold] cached,
    [bold]u[/bold] used by one sequence, [bold]s[/bold] shared, [bold]p[/bold] pinned.

    Example: [bold]pagoda cache inspect http://127.0.0.1:8000 --json[/bold]
    """
    found = ask("GET", f"{url}/v1/cache")
    if as_json:
        typer.echo(json.dumps(found))
        return
    for line in lines(found):
        typer.echo(line)


@cache.command()
def warm(
    url: URL,
    file: Annotated[str, typer.Argument(help="Openings, a JSON object on each line, as for pagoda serve --warm.")],
) -> None:
    """Compute the openings of a file and pin them. What is pinned already stays as it is.

    Example: [bold]pagoda cache warm http://127.0.0.1:8000 prompts.jsonl[/bold]
    """
    from pagoda.openings import read_openings

    openings = read_openings(file)
    for number, opening in enumerate(openings, 1):
        pin = ask("POST", f"{url}/v1/cache/pins", opening.as_dict, where=f"{file}, line {opening.line}: ")
        name = f" {pin['name']!r}" if pin["name"] else ""
        typer.echo(f"{pin['id']} {number} of {len(openings)}{name}: {pin['tokens']:,} tokens in {pin['pages']:,} pages")


@cache.command()
def clear(
    url: URL, pins: Annotated[bool, typer.Option("--pins", help="Let pins go too, whoever made them.")] = False
) -> None:
    """Forget every prefix that no request uses.

    Example: [bold]pagoda cache clear http://127.0.0.1:8000 --pins[/bold]
    """
    done = ask("DELETE", f"{url}/v1/cache?pins={json.dumps(pins)}")
    typer.echo(f"cleared {done['pages']:,} pages and {done['pins']:,} pins")


def lines(found: dict[str, Any]) -> list[str]:
    """A cache, for people."""
    pages, asked = found["pages"], found["asked"]
    rate = "nothing was asked for yet" if asked["hit_rate"] is None else f"{asked['hit_rate']:.1%} of tokens found"
    size, missed = found["unit_bytes"], sum(asked["missed_tokens"].values())
    groups = len(found["maps"])
    each = f" and {size:,} bytes" if groups == 1 else f" in {groups} KV groups; one of each has {size:,} bytes"
    told = [
        f"pages    {pages['total']:,} of {found['page_size']} tokens" + (each if size else ""),
        "         " + ", ".join(f"{pages[state]:,} {state}" for state in ("used", "pinned", "cached", "free")),
        f"prefixes {found['prefixes']:,} places where kept prefixes end or part",
        f"asked    {rate}: {asked['found_tokens']:,} of {asked['found_tokens'] + missed:,}",
    ]
    for cause, count in asked["requests"].items():
        if count:
            told.append(f"         {cause:<16}{count:>8,} requests, {asked['missed_tokens'][cause]:>10,} tokens missed")
    for pin in found["pins"]:
        whose = "everyone's" if pin["shared"] else f"of {pin['owner']!r}"
        name = f" {pin['name']!r}" if pin["name"] else ""
        told.append(
            f"{pin['id']:<8} {whose}{name}: {pin['tokens']:,} tokens, {pin['pages']:,} pages, {pin['hits']:,} hits"
        )
    if disk := found["disk"]:
        told += disk_lines(disk)
    for group, letters in enumerate(found["maps"]):
        told.append(f"map of KV group {group}, in runs: . free, c cached, u used, s shared, p pinned")
        told += wrap(" ".join(f"{len(list(run)):,}{letter}" for letter, run in groupby(letters)), MAP_WIDTH)
    return told


def disk_lines(disk: dict[str, Any]) -> list[str]:
    """The tier, for people."""
    told = [
        f"on disk  {disk['units']:,} pages of every KV group; {disk['bytes']:,} of {disk['budget']:,} bytes",
        "         " + ", ".join(f"{disk[what]:,} {what}" for what in ("saved", "restored", "dropped")),
    ]
    if not disk["writing"]:
        told.append("         nothing is written: the disk is full or refuses")
    for fault, count in disk["faults"].items():
        told.append(f"         {fault:<16}{count:>8,} files not used or not written")
    return told


def ask(method: str, url: str, body: object = None, where: str = "") -> dict[str, Any]:
    """One request to a server.

    Raises:
        PagodaError: it cannot be reached, or refuses; `where` goes before its reason.
    """
    from urllib.error import HTTPError, URLError
    from urllib.request import ProxyHandler, Request, build_opener

    from pagoda.errors import PagodaError, UserError

    headers = {"content-type": "application/json"}
    if key := os.environ.get("PAGODA_API_KEY"):
        headers["authorization"] = f"Bearer {key}"
    try:
        data = None if body is None else json.dumps(body).encode()
        opener = build_opener(ProxyHandler({}))  # what a proxy passes on is not from this machine
        with opener.open(Request(url, data, headers, method=method), timeout=600) as answer:
            found: dict[str, Any] = json.load(answer)
            return found
    except HTTPError as error:
        try:
            with error:
                message = json.load(error)["error"]["message"]
        except (ValueError, KeyError, TypeError):
            message = f"{url} answers {error.code}: is it a Pagoda server?"
        raise PagodaError(f"{where}{message}") from None
    except (URLError, OSError, ValueError) as error:
        raise UserError(f"{where}cannot reach {url}: {getattr(error, 'reason', error)}") from None
