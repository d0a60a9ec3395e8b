"""The command group: each file beside this one, but those with an underscore, is a command of its file's name.

A command's file has a function or a `typer.Typer` of that name; it imports what is heavy inside the function, so that
`pagoda --help` reads them all in an instant.
"""

from __future__ import annotations

import pkgutil
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

import pagoda.cli
from pagoda.errors import PagodaError


class CommandFiles(TyperGroup):
    """Finds commands when they are asked for, and tells errors in one line."""

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002
        """The files."""
        names = (module.name for module in pkgutil.iter_modules(pagoda.cli.__path__))
        return sorted(name for name in names if not name.startswith("_"))

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command of a file; None if there is no such file."""
        if cmd_name not in self.list_commands(ctx):
            return None
        found = getattr(import_module(f"pagoda.cli.{cmd_name}"), cmd_name)
        if not isinstance(found, typer.Typer):
            single = typer.Typer(add_completion=False)
            single.command(cmd_name, no_args_is_help=False)(found)
            found = single
        command = typer.main.get_command(found)
        command.name = cmd_name
        return command

    def invoke(self, ctx: Any) -> Any:
        """Run a command."""
        try:
            return super().invoke(ctx)
        except PagodaError as error:
            typer.echo(f"pagoda: {error}", err=True)
            raise typer.Exit(1) from None
        except KeyboardInterrupt:
            raise typer.Exit(130) from None


app = typer.Typer(
    cls=CommandFiles,
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"pagoda {pagoda.__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and leave.", is_eager=True, callback=_show_version)
    ] = False,
) -> None:
    """Run language models on ordinary CPUs: from Python, in a terminal, or behind an OpenAI-compatible endpoint.

    Try: [bold]pagoda generate "The tallest pagoda"[/bold], [bold]pagoda chat[/bold], [bold]pagoda serve[/bold].
    """
