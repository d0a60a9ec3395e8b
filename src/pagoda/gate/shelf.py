"""Verdicts in the user's cache directory: a file for each fingerprint, whole or not there.

A file that cannot be read, or is of another version, is as good as none: the format is measured anew.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec

from pagoda.catalog.directory import cache_directory, write_whole
from pagoda.gate.verdict import Verdict

VERSION = 1
"""Of the files, the work and the limits: a change of any of them makes old verdicts void."""


@dataclass(frozen=True, slots=True)
class _File:
    version: int
    verdict: Verdict


def keep(verdict: Verdict) -> None:
    """Write a verdict in place of the one before.

    Raises:
        OSError: the directory cannot be written.
    """
    write_whole(_path(verdict.fingerprint), msgspec.json.format(msgspec.json.encode(_File(VERSION, verdict))))


def recall(fingerprint: str) -> Verdict | None:
    """The verdict on these outputs."""
    found = _read(_path(fingerprint))
    return found if found is not None and found.fingerprint == fingerprint else None


def every() -> list[Verdict]:
    """All that can be read, oldest first."""
    found = [_read(path) for path in _directory().glob("*.json")]
    return sorted((each for each in found if each is not None), key=lambda each: (each.date, each.fingerprint))


def _directory() -> Path:
    return cache_directory() / "verdicts"


def _path(fingerprint: str) -> Path:
    return _directory() / f"{fingerprint}.json"


def _read(path: Path) -> Verdict | None:
    with suppress(OSError, msgspec.MsgspecError, UnicodeDecodeError):
        held = msgspec.json.decode(path.read_bytes(), type=_File)
        return held.verdict if held.version == VERSION else None
    return None
