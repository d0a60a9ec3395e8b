"""A model's file: its metadata, its tensors by name, and its digest.

Reads with `pread` only, so that a file that shrinks while in use is an error message and not a signal. Does not know
what the metadata or the tensors mean.
"""

from __future__ import annotations

import mmap
import os
import stat
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Self

import numpy as np

from pagoda.backends.ops import Bytes, StoredTensor
from pagoda.catalog.digest import digest
from pagoda.catalog.gguf import TensorInfo, read_header
from pagoda.errors import MemoryLimit, ModelFileError, UnsupportedModel


@dataclass(frozen=True, slots=True)
class _Extent:
    """Where a tensor's bytes lie, as long as its file is open."""

    info: TensorInfo
    file: ModelFile

    @property
    def descriptor(self) -> int:
        return self.file.descriptor

    @property
    def offset(self) -> int:
        return self.info.offset

    @property
    def size(self) -> int:
        return self.info.size

    def read(self) -> Bytes:
        return self.file.tensor(self.info.name).raw


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
        return StoredTensor(name, info.shape, info.format, self._read(info))

    def unread(self, names: Iterable[str]) -> list[StoredTensor]:
        """Tensors in the file's order, none of which is read before somebody wants it; no longer than the file is open.

        Raises:
            ModelFileError: there is no such tensor.
        """
        infos = sorted(map(self._info, names), key=lambda info: info.offset)
        return [StoredTensor(t.name, t.shape, t.format, _Extent(t, self)) for t in infos]

    @property
    def descriptor(self) -> int:
        """The open file's; -1 once closed."""
        return self._descriptor

    def _info(self, name: str) -> TensorInfo:
        if name not in self.tensors:
            raise ModelFileError(f"{self.path}: has no tensor {name!r} among its {len(self.tensors)}")
        return self.tensors[name]

    def _read(self, info: TensorInfo) -> Bytes:
        try:
            # Not from the heap, where what is packed meanwhile would lie above it and keep it from going back.
            memory = mmap.mmap(-1, info.size)
        except OSError as error:
            raise MemoryLimit(f"{self.path}: no memory for the {info.size} bytes of tensor {info.name!r}") from error
        view, done = memoryview(memory), 0
        while done < info.size:
            at = info.offset + done
            try:
                got = os.preadv(self._descriptor, [view[done:]], at)
            except OSError as error:
                raise ModelFileError(f"{self.path}: tensor {info.name!r} cannot be read: {error.strerror}") from error
            if got == 0:
                raise ModelFileError(
                    f"{self.path}: ended at byte {at} within tensor {info.name!r}, which ends at byte "
                    f"{info.offset + info.size}: the file was cut short after it was opened"
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
