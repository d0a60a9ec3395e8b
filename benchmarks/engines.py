"""Engines as worker processes, asked one cell at a time over pipes (the protocol is `worker.py`'s). Knows no engine."""

from __future__ import annotations

import json
import re
import select
import shlex
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

LONG = 1000
"""Tokens of context from which on a cell takes long to fill."""
LAST_WORDS = 200


class EngineError(Exception):
    """An engine that could not do what it was asked."""


@dataclass(frozen=True)
class Cell:
    """What is asked at once: a prompt's length, or a context and some batches."""

    name: str
    batches: tuple[int, ...]

    @property
    def results(self) -> list[str]:
        """Names of the figures that come back."""
        return [f"{self.name}b{b}" for b in self.batches] if self.batches else [self.name]

    @property
    def is_long(self) -> bool:
        """Whether filling its contexts takes much longer than measuring."""
        return bool(self.batches) and int(self.name.removeprefix("decode")) >= LONG


def cell_named(text: str) -> Cell:
    """`prefill512`, or `decode16b1,16,32`.

    Raises:
        SystemExit: neither.
    """
    match = re.fullmatch(r"(prefill\d+)|(decode\d+)b(\d+(?:,\d+)*)", text)
    if not match:
        raise SystemExit(f"a cell is prefillN or decodeCbB,B..., got {text!r}")
    return Cell(match[1], ()) if match[1] else Cell(match[2], tuple(map(int, match[3].split(","))))


class Worker:
    """One engine in its own process, with its model loaded.

    Args:
        name: for tables.
        command: split as a shell would; each word may have fields such as `{model}`.
        fields: what they stand for.
        patience: seconds to wait for an answer.

    Raises:
        EngineError: it does not start, or says nothing.
    """

    def __init__(self, name: str, command: str, fields: Mapping[str, object], patience: float) -> None:
        self.name = name
        self._patience = patience
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115
        try:
            self._process = subprocess.Popen(
                [word.format_map(fields) for word in shlex.split(command)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
            )
        except OSError as error:
            self._errors.close()
            raise EngineError(f"cannot be started: {error}") from error
        try:
            self.versions = self._answer().get("ready")
        except EngineError:
            self.close()
            raise

    def ask(self, cell: Cell) -> dict[str, float]:
        """Measure one cell once: seconds a token by name.

        Raises:
            EngineError: it answered with an error, or not at all.
        """
        assert self._process.stdin
        asked: dict[str, object] = {"cell": cell.name, **({"batches": list(cell.batches)} if cell.batches else {})}
        try:
            self._process.stdin.write(json.dumps(asked).encode() + b"\n")
            self._process.stdin.flush()
        except OSError as error:
            raise EngineError(self._last_words()) from error
        found = self._answer()
        if missing := [name for name in cell.results if not isinstance(found.get(name), float)]:
            raise EngineError(f"no figure for {', '.join(missing)}")
        return found

    def close(self) -> None:
        """End it."""
        assert self._process.stdin
        assert self._process.stdout
        try:
            self._process.stdin.close()
            self._process.wait(30)
        except (OSError, subprocess.TimeoutExpired):
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
        self._errors.close()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout
        if not select.select([self._process.stdout], [], [], self._patience)[0]:
            self._process.kill()
            raise EngineError(f"no answer within {self._patience:g} s")
        line = self._process.stdout.readline()
        if not line:
            raise EngineError(self._last_words())
        try:
            found = json.loads(line)
        except ValueError as error:
            raise EngineError(f"answered {line!r:.80}, which is not JSON") from error
        if "error" in found:
            raise EngineError(str(found["error"]))
        return dict(found)

    def _last_words(self) -> str:
        status = self._process.wait()
        self._errors.seek(0)
        said = self._errors.read().decode(errors="replace").strip()
        return f"ended with status {status}: {said[-LAST_WORDS:]}"
