"""`pagoda keys`: API keys for `pagoda serve --api-keys`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

keys = typer.Typer(no_args_is_help=True, add_completion=False)
FileOption = Annotated[Path, typer.Option("--file", "-f", help="The file of keys.")]
FILE = Path("keys.toml")


@keys.callback()
def _group() -> None:
    """Make keys for [bold]pagoda serve --api-keys[/bold].

    Try: [bold]pagoda keys new alice[/bold]
    """


@keys.command()
def new(
    name: Annotated[str, typer.Argument(help="Whose key it is; metrics, limits and shares go by this name.")],
    file: FileOption = FILE,
    administrator: Annotated[bool, typer.Option(help="It may also see and change what belongs to all.")] = False,
) -> None:
    """Make a key, print it once, and add its hash to the file. Nobody can read the key from there.

    A server that uses the file takes the new key within a second.

    Try: [bold]pagoda keys new alice --file keys.toml[/bold]
    """
    from pagoda.server.keys import new_key

    typer.echo(new_key(file, name, administrator))


@keys.command("list")
def list_keys(file: FileOption = FILE) -> None:
    """Name the keys of the file, and say what each may.

    Try: [bold]pagoda keys list --file keys.toml[/bold]
    """
    from pagoda.server.keys import read_keys

    for key in read_keys(file):
        limits = key.caller.limits
        rate = "any" if limits.tokens_per_minute is None else limits.tokens_per_minute
        calls = "any" if limits.max_concurrent is None else limits.max_concurrent
        kind = "administrator" if key.caller.administrator else "user"
        typer.echo(f"{key.caller.tenant:<24} {kind:<14} {calls} calls at once, {rate} tokens a minute")
