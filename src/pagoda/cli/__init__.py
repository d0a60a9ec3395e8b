"""The command line: one file per command, none with logic that the Python API lacks."""

from __future__ import annotations

import gc
import sys


def main() -> None:
    """Run `pagoda`. Exit codes: 0 done, 1 an error that is told in a line, 2 wrong usage, 130 Ctrl-C."""
    gc.disable()  # a start allocates a great deal and drops next to none of it: `settled` ends this
    try:
        from pagoda.cli._app import app

        app(prog_name="pagoda")
    except KeyboardInterrupt:
        sys.exit(130)


def settled() -> None:
    """Collect garbage from here on: called once a command's long part begins."""
    gc.enable()
