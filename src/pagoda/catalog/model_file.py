"""A model's file: its metadata, its tensors by name, and its digest.

Reads with `pread` only, so that a file that shrinks while in use is an error message and not a signal. Does not know
what the metadata or the tensors mean.
"""

from __future__ import annotations

import mmap
import os
import stat
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Self

import numpy as np

from pagoda.backends.ops import Bytes, StoredTensor
from pagoda.catalog.digest import digest
from pagoda.catalog.gguf import TensorInfo, read_header
from pagoda.errors import MemoryLimit, ModelFileError, UnsupportedModel

BATCH = 32 * 2**20
"""Bytes read at once: enough that each reading's overhead is nothing, little beside a model."""
GAP = 4096
"""Bytes between two tensors that are rather read than skipped."""


def _end(info: TensorInfo) -> int:
    return info.offset + info.size


class ModelFile:
    """An open GGUF file. Any number of threads may read; close it when no thread does."""

    path: Path
    architecture: str
    """As in `llama`: the family of `models` that runs it."""
    metadata: Mapping[str, object]
    """int, float, bool, str, or lists of these."""
    tensors: Mapping[str, TensorInfo]
    """Names, shapes and formats, in the file's order; nothing is read for them."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Open a file and read its header.

        Raises:
            ModelFileError: absent, damaged, truncated or lying.
            UnsupportedModel: of a version or with a tensor type that Pagoda does not know.
        """
        self.path = Path(path)
        self._descriptor = -1
        try:
            # O_NONBLOCK: opening a pipe that nobody writes to would wait for ever
            self._descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
            self._read_header()
        except OSError as error:
            self.close()
            raise ModelFileError(f"{self.path}: cannot be read: {error.strerror}") from error
        except BaseException:
            self.close()
            raise

    def _read_header(self) -> None:
        found = os.fstat(self._descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise ModelFileError(f"{self.path}: not a file; name the .gguf file itself")
        header = read_header(self._descriptor, found.st_size, str(self.path))
        architecture = header.metadata.get("general.architecture")
        if not isinstance(architecture, str) or not architecture:
            what = "is missing" if architecture is None else f"is {architecture!r:.100}"
            raise ModelFileError(
                f"{self.path}: metadata 'general.architecture' {what}; a name such as 'llama' is expected"
            )
        parts = header.metadata.get("split.count", 0)
        if isinstance(parts, int) and parts > 1:
            raise UnsupportedModel(f"{self.path}: one of {parts} parts of a model; join them into one file first")
        self.architecture = architecture
        self.metadata = MappingProxyType(header.metadata)
        self.tensors = MappingProxyType(header.tensors)

    @property
    def name(self) -> str:
        """The file's path, for messages."""
        return str(self.path)

    def tensor(self, name: str) -> StoredTensor:
        """Read a tensor's bytes.

        Raises:
            ModelFileError: there is no such tensor, or the file has shrunk since it was opened.
            MemoryLimit: it does not fit into memory.
        """
        info = self._info(name)
        return StoredTensor(name, info.shape, info.format, self._read([info]))

    def batches(self, names: Iterable[str]) -> Iterator[list[StoredTensor]]:
        """Read tensors in the file's order, neighbours in one go, `BATCH` bytes or one tensor at a time.

        Their bytes are parts of one array: what keeps one keeps them all.

        Raises:
            ModelFileError, MemoryLimit: as `tensor`.
        """
        run: list[TensorInfo] = []
        for info in sorted(map(self._info, names), key=lambda info: info.offset):
            if run and (info.offset > run[-1].offset + run[-1].size + GAP or _end(info) - run[0].offset > BATCH):
                yield self._tensors(run)
                run = []
            run.append(info)
        if run:
            yield self._tensors(run)

    def _info(self, name: str) -> TensorInfo:
        if name not in self.tensors:
            raise ModelFileError(f"{self.path}: has no tensor {name!r} among its {len(self.tensors)}")
        return self.tensors[name]

    def _tensors(self, run: list[TensorInfo]) -> list[StoredTensor]:
        raw, start = self._read(run), run[0].offset
        return [StoredTensor(t.name, t.shape, t.format, raw[t.offset - start : _end(t) - start]) for t in run]

    def _read(self, run: list[TensorInfo]) -> Bytes:
        """All bytes from the first tensor's beginning to the last one's end."""
        start, size = run[0].offset, _end(run[-1]) - run[0].offset
        try:
            # Not from the heap, where what is packed meanwhile would lie above it and keep it from going back.
            memory = mmap.mmap(-1, size)
        except OSError as error:
            raise MemoryLimit(f"{self.path}: no memory for the {size} bytes of tensor {run[0].name!r}") from error
        view, done = memoryview(memory), 0
        while done < size:
            within = next(t for t in run if start + done < _end(t))
            try:
                got = os.preadv(self._descriptor, [view[done:]], start + done)
            except OSError as error:
                raise ModelFileError(f"{self.path}: tensor {within.name!r} cannot be read: {error.strerror}") from error
            if got == 0:
                raise ModelFileError(
                    f"{self.path}: ended at byte {start + done} within tensor {within.name!r}, which ends at byte "
                    f"{_end(within)}: the file was cut short after it was opened"
                )
            done += got
        return np.frombuffer(view.toreadonly(), np.uint8)

    def digest(self) -> str:
        """SHA-256 of the whole file, in hexadecimal; remembered in the user's cache directory.

        Raises:
            ModelFileError: it cannot be read, or changed meanwhile.
        """
        return digest(self._descriptor, self.path)

    def close(self) -> None:
        """Let the file go; tensors read before stay good."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
