"""The files that a model's tensors lie in, one or several, read with `pread` alone: a file that shrinks while in use is
an error message and not a signal. Knows offsets and sizes; does not know formats of files or what tensors mean.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np

from pagoda.backends.ops import Bytes, StoredTensor
from pagoda.catalog.digest import digest
from pagoda.catalog.gguf import TensorInfo
from pagoda.errors import MemoryLimit, ModelFileError

BATCH = 32 * 2**20
"""Bytes read at once: enough that each reading's overhead is nothing, little beside a model."""
GAP = 4096
"""Bytes between two tensors that are rather read than skipped."""


def _end(info: TensorInfo) -> int:
    return info.offset + info.size


class Shards:
    """Open files. Any number of threads may read; close them when no thread does."""

    def __init__(self) -> None:
        self.paths: list[Path] = []
        self._descriptors: list[int] = []

    def open(self, path: Path, what: str) -> tuple[int, int]:
        """Open one more; its descriptor and its size in bytes. `what` it should be, for the message.

        Raises:
            ModelFileError: it is absent, or not a file.
        """
        try:
            # O_NONBLOCK: opening a pipe that nobody writes to would wait for ever
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
            self.paths.append(path)
            self._descriptors.append(descriptor)
            found = os.fstat(descriptor)
        except OSError as error:
            raise ModelFileError(f"{path}: cannot be read: {error.strerror}") from error
        if not stat.S_ISREG(found.st_mode):
            raise ModelFileError(f"{path}: not a file; name {what}")
        return descriptor, found.st_size

    def batches(self, infos: Iterable[TensorInfo]) -> Iterator[list[StoredTensor]]:
        """Read tensors in the files' order, neighbours in one go, `BATCH` bytes or one tensor at a time.

        Their bytes are parts of one array: what keeps one keeps them all.

        Raises:
            ModelFileError, MemoryLimit: as `tensor`.
        """
        run: list[TensorInfo] = []
        for info in sorted(infos, key=lambda info: (info.shard, info.offset)):
            if run and (
                info.shard != run[-1].shard
                or info.offset > run[-1].offset + run[-1].size + GAP
                or _end(info) - run[0].offset > BATCH
            ):
                yield self._tensors(run)
                run = []
            run.append(info)
        if run:
            yield self._tensors(run)

    def tensor(self, info: TensorInfo) -> StoredTensor:
        """Read a tensor's bytes.

        Raises:
            ModelFileError: the file has shrunk since it was opened.
            MemoryLimit: it does not fit into memory.
        """
        return self._tensors([info])[0]

    def _tensors(self, run: Sequence[TensorInfo]) -> list[StoredTensor]:
        raw, start = self._read(run), run[0].offset
        return [StoredTensor(t.name, t.shape, t.format, raw[t.offset - start : _end(t) - start]) for t in run]

    def _read(self, run: Sequence[TensorInfo]) -> Bytes:
        """All bytes from the first tensor's beginning to the last one's end."""
        start, size, shard = run[0].offset, _end(run[-1]) - run[0].offset, run[0].shard
        path, descriptor = self.paths[shard], self._descriptors[shard]
        try:
            # Not from the heap, where what is packed meanwhile would lie above it and keep it from going back.
            memory = mmap.mmap(-1, size)
        except OSError as error:
            raise MemoryLimit(f"{path}: no memory for the {size} bytes of tensor {run[0].name!r}") from error
        view, done = memoryview(memory), 0
        while done < size:
            within = next(t for t in run if start + done < _end(t))
            try:
                got = os.preadv(descriptor, [view[done:]], start + done)
            except OSError as error:
                raise ModelFileError(f"{path}: tensor {within.name!r} cannot be read: {error.strerror}") from error
            if got == 0:
                raise ModelFileError(
                    f"{path}: ended at byte {start + done} within tensor {within.name!r}, which ends at byte "
                    f"{_end(within)}: the file was cut short after it was opened"
                )
            done += got
        return np.frombuffer(view.toreadonly(), np.uint8)

    def digest(self, *besides: bytes) -> str:
        """SHA-256 in hexadecimal: of the only file, or else of all files' digests and `besides`; each file's is
        remembered in the user's cache directory.

        Raises:
            ModelFileError: one cannot be read, or changed meanwhile.
        """
        each = [digest(descriptor, path) for descriptor, path in zip(self._descriptors, self.paths, strict=True)]
        if len(each) == 1 and not besides:
            return each[0]
        return hashlib.sha256(
            b"".join([*map(str.encode, each), *(hashlib.sha256(b).digest() for b in besides)])
        ).hexdigest()

    def close(self) -> None:
        """Let the files go; tensors read before stay good."""
        for i, descriptor in enumerate(self._descriptors):
            if descriptor >= 0:
                os.close(descriptor)
            self._descriptors[i] = -1


def guarded(shards: Shards, opening: Callable[[], None]) -> None:
    """Do what opening takes; if it fails, close what is open."""
    try:
        opening()
    except BaseException:
        shards.close()
        raise
