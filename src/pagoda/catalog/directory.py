"""The user's cache directory: where it is, files that appear whole or not at all, and one writer at a time.

Knows nothing of what is kept in it.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


def cache_directory() -> Path:
    """$PAGODA_CACHE, else $XDG_CACHE_HOME/pagoda, else ~/.cache/pagoda. It may not exist yet."""
    if own := os.environ.get("PAGODA_CACHE"):
        return Path(own).expanduser()
    if xdg := os.environ.get("XDG_CACHE_HOME"):
        return Path(xdg).expanduser() / "pagoda"
    return Path("~/.cache/pagoda").expanduser()


def write_whole(path: Path, content: bytes) -> None:
    """Write a small file so that a reader sees all of it or none."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.name)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary)
        raise


@contextmanager
def locked(path: Path, waiting: Callable[[], None]) -> Iterator[None]:
    """Hold the lock file `path` against other processes and threads; `waiting` is called while another holds it.

    The kernel lets go of the lock when its holder dies. The empty file stays: removing it would let two hold "it".
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                waiting()
                time.sleep(0.1)
        yield
    finally:
        os.close(descriptor)
