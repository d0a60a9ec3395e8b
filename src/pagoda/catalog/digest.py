"""SHA-256 of a model file, remembered so that a second start costs nothing.

A remembered digest holds for a path, size, inode, and times of modification and change: replacing or editing the file
makes it a different question.
"""

from __future__ import annotations

import hashlib
import os
import re
import time
from contextlib import suppress
from pathlib import Path

from pagoda.catalog.directory import cache_directory, write_whole
from pagoda.errors import ModelFileError

_PIECE = 2**20
_TICK_NS = 100_000_000
"""A file changed less than this before hashing might change again within one tick of its file system's clock."""


def digest(descriptor: int, path: Path) -> str:
    """SHA-256 of an open file, in hexadecimal.

    Raises:
        ModelFileError: it cannot be read, or changed meanwhile.
    """
    try:
        before = os.fstat(descriptor)
        memory = _memory(path, before)
        with suppress(OSError, UnicodeDecodeError):
            if re.fullmatch(r"[0-9a-f]{64}", known := memory.read_text()):
                return known
        settled = time.time_ns() - max(before.st_ctime_ns, before.st_mtime_ns) > _TICK_NS
        found = _hash(descriptor)
        after = os.fstat(descriptor)
    except OSError as error:
        raise ModelFileError(f"{path}: cannot be read: {error.strerror}") from error
    if _identity(before) != _identity(after):
        raise ModelFileError(f"{path}: changed while it was being read; start again when nothing writes to it")
    if settled:
        with suppress(OSError):  # a cache that cannot be written only costs time
            write_whole(memory, found.encode())
    return found


def _identity(stat: os.stat_result) -> tuple[int, ...]:
    return (stat.st_size, stat.st_ino, stat.st_mtime_ns, stat.st_ctime_ns)


def _memory(path: Path, stat: os.stat_result) -> Path:
    """The file that remembers the digest."""
    question = "\0".join([os.path.realpath(path), *map(str, _identity(stat))])
    return cache_directory() / "digests" / hashlib.sha256(os.fsencode(question)).hexdigest()[:32]


def _hash(descriptor: int) -> str:
    sha = hashlib.sha256()
    at = 0
    while piece := os.pread(descriptor, _PIECE, at):
        sha.update(piece)
        at += len(piece)
    return sha.hexdigest()
