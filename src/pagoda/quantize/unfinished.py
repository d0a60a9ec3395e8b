"""A file on its way: what is done of it survives a kill, and it appears whole or not at all.

Beside OUT lies a directory, OUT.unfinished, with the bytes so far, a journal of the units that are done, and what the
next unit starts from. A unit counts once its line is in the journal; whatever was written behind the last line is
written again. Knows nothing of what units are.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from pagoda.backends.ops import Bytes, Floats
from pagoda.catalog.directory import write_whole
from pagoda.errors import InvalidConfig, ModelFileError

MARGIN = 16 * 2**20
"""Bytes that must be free besides those of the file."""


class Unfinished:
    """Open with `at`; one process at a time.

    Args:
        out: the file in the end.
        job: what the bytes hang on, in hexadecimal; what another job left is thrown away.
    """

    def __init__(self, out: Path, job: str) -> None:
        self._out = out
        self._folder = directory_of(out)
        self._data, self._journal = self._folder / "data", self._folder / "journal"
        self.done: list[dict[str, Any]] = []
        """A record for each unit that is done, in order, with its `end` in `data`."""
        self.discarded = not self._of(job)
        """Whether there was something of another job."""
        if self.discarded:
            for path in self._folder.iterdir():
                if path.name != "lock":
                    path.unlink()
        write_whole(self._folder / "job", job.encode())
        self._read_journal()

    def _of(self, job: str) -> bool:
        known = self._folder / "job"
        return not self._journal.exists() or (known.exists() and known.read_text(errors="replace") == job)

    def _read_journal(self) -> None:
        lines = self._journal.read_bytes().split(b"\n") if self._journal.exists() else []
        size = self._data.stat().st_size if self._data.exists() else 0
        for line in lines[:-1]:  # what has no line's end was being written
            try:
                record = json.loads(line)
            except ValueError:
                break
            if record["end"] > size:
                break
            self.done.append(record)
        write_whole(self._journal, b"".join(json.dumps(record).encode() + b"\n" for record in self.done))

    @property
    def written(self) -> int:
        """Bytes that are done."""
        return int(self.done[-1]["end"]) if self.done else 0

    def check_room(self, size: int) -> None:
        """Whether a file of `size` bytes will fit.

        Raises:
            InvalidConfig: it will not.
        """
        here = self._data.stat().st_size if self._data.exists() else 0
        free, needed = shutil.disk_usage(self._folder).free, size - here + MARGIN
        if free < needed:
            raise InvalidConfig(
                f"{self._out.parent} has {free / 1e6:.0f} MB free, and {needed / 1e6:.0f} MB are needed: make room, or "
                "name a file on another disk"
            )

    def write(self, pieces: Iterable[Bytes | bytes], record: dict[str, Any], state: Floats | None = None) -> None:
        """Write a unit behind those that are done, and note it.

        Args:
            pieces: its bytes.
            record: what is kept of it, in JSON's types.
            state: what the next unit starts from.
        """
        with self._opened() as file:
            file.seek(self.written)
            file.truncate()
            for piece in pieces:
                file.write(piece if isinstance(piece, bytes) else np.ascontiguousarray(piece).data)
            end = file.tell()
            file.flush()
            os.fsync(file.fileno())
        number = len(self.done) + 1
        if state is not None:
            with self._state(number).open("wb") as file:
                np.save(file, state)
                file.flush()
                os.fsync(file.fileno())
        whole = {**record, "end": end}
        with self._journal.open("ab") as file:
            file.write(json.dumps(whole).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
        self.done.append(whole)
        self._state(number - 1).unlink(missing_ok=True)

    @contextmanager
    def _opened(self) -> Iterator[Any]:
        self._data.touch()
        with self._data.open("r+b") as file:
            yield file

    def _state(self, number: int) -> Path:
        return self._folder / f"state-{number}.npy"

    def state(self) -> Floats:
        """What the next unit starts from.

        Raises:
            ModelFileError: it is gone.
        """
        path = self._state(len(self.done))
        try:
            found: Floats = np.load(path, allow_pickle=False)
        except (OSError, ValueError) as error:
            raise ModelFileError(f"{path}: cannot be read ({error}); remove {self._folder} and start again") from error
        return found

    def finish(self) -> None:
        """Put the file in its place."""
        os.replace(self._data, self._out)
        shutil.rmtree(self._folder)


def directory_of(out: Path) -> Path:
    """Where a file is while it is on its way."""
    return out.with_name(out.name + ".unfinished")


@contextmanager
def at(out: Path, job: str) -> Iterator[Unfinished]:
    """What there is of a file.

    Raises:
        InvalidConfig: another process is writing it.
    """
    folder = directory_of(out)
    folder.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InvalidConfig(f"another process is writing {out}: wait for it, or name another file") from None
        unfinished = Unfinished(out, job)
        try:
            yield unfinished
        except BaseException:
            if not unfinished.done:  # nothing to go on from
                shutil.rmtree(folder, ignore_errors=True)
            raise
    finally:
        os.close(descriptor)
