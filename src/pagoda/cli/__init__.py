"""The command line: one file per command, none with logic that the Python API lacks."""

from __future__ import annotations

import sys


def main() -> None:
    """Run `pagoda`. Exit codes: 0 done, 1 an error that is told in a line, 2 wrong usage, 130 Ctrl-C."""
    try:
        from pagoda.cli._app import app

        app(prog_name="pagoda")
    except KeyboardInterrupt:
        sys.exit(130)
