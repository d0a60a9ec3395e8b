"""The files that a model's tensors lie in, one or several, read with `pread` alone: a file that shrinks while in use is
an error message and not a signal. Knows offsets and sizes; does not know formats of files or what tensors mean.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import stat
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from pagoda.backends.ops import Bytes, StoredTensor
from pagoda.catalog.digest import digest
from pagoda.catalog.gguf import TensorInfo
from pagoda.errors import MemoryLimit, ModelFileError

BATCH = 32 * 2**20
"""Bytes of tensors that are handed over together: who reads them at once has no more of them in memory."""


@dataclass(frozen=True, slots=True)
class _Extent:
    """Some of a tensor's bytes, as long as its file is open."""

    shards: Shards
    name: str
    shard: int
    offset: int
    size: int

    @property
    def descriptor(self) -> int:
        return self.shards.descriptor(self.shard)

    def part(self, start: int, size: int) -> _Extent:
        return replace(self, offset=self.offset + start, size=size)

    def read(self) -> Bytes:
        return self.shards.read(self)


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

    def descriptor(self, shard: int) -> int:
        """Of an open file; -1 once closed."""
        return self._descriptors[shard]

    def batches(self, infos: Iterable[TensorInfo]) -> Iterator[list[StoredTensor]]:
        """Tensors in the files' order, `BATCH` bytes or one tensor at a time, none read before its bytes are wanted."""
        batch: list[StoredTensor] = []
        size = 0
        for info in sorted(infos, key=lambda info: (info.shard, info.offset)):
            if batch and size + info.size > BATCH:
                yield batch
                batch, size = [], 0
            batch.append(StoredTensor(info.name, info.shape, info.format, self._extent(info)))
            size += info.size
        if batch:
            yield batch

    def tensor(self, info: TensorInfo) -> StoredTensor:
        """Read a tensor's bytes.

        Raises:
            ModelFileError: the file has shrunk since it was opened.
            MemoryLimit: it does not fit into memory.
        """
        return StoredTensor(info.name, info.shape, info.format, self._extent(info).read())

    def piece(self, name: str, shard: int, offset: int, size: int) -> Bytes:
        """Some bytes of a file, called `name` in messages; errors as `tensor`."""
        return self.read(_Extent(self, name, shard, offset, size))

    def _extent(self, info: TensorInfo) -> _Extent:
        return _Extent(self, f"tensor {info.name!r}", info.shard, info.offset, info.size)

    def read(self, extent: _Extent) -> Bytes:
        """The bytes of an extent; errors as `tensor`."""
        path, descriptor, size = self.paths[extent.shard], self._descriptors[extent.shard], extent.size
        try:
            # Not from the heap, where what is packed meanwhile would lie above it and keep it from going back.
            memory = mmap.mmap(-1, size)
        except OSError as error:
            raise MemoryLimit(f"{path}: no memory for the {size} bytes of {extent.name}") from error
        view, done = memoryview(memory), 0
        while done < size:
            at = extent.offset + done
            try:
                got = os.preadv(descriptor, [view[done:]], at)
            except OSError as error:
                raise ModelFileError(f"{path}: {extent.name} cannot be read: {error.strerror}") from error
            if got == 0:
                raise ModelFileError(
                    f"{path}: ended at byte {at} within {extent.name}, which ends at byte "
                    f"{extent.offset + size}: the file was cut short after it was opened"
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
