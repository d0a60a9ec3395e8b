"""A GGUF model: its metadata, its tensors by name, and its digest; of one file, or of several that `gguf-split` made.

Does not know what the metadata or the tensors mean.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Self

from pagoda.backends.ops import StoredTensor
from pagoda.catalog.gguf import Header, TensorInfo, read_header
from pagoda.catalog.shards import Shards, guarded
from pagoda.errors import ModelFileError

MOST_PARTS = 4096


class ModelFile:
    """An open GGUF model. Any number of threads may read; close it when no thread does."""

    path: Path
    architecture: str
    """As in `llama`: the family of `models` that runs it."""
    metadata: Mapping[str, object]
    """int, float, bool, str, or lists of these."""
    tensors: Mapping[str, TensorInfo]
    """Names, shapes and formats, in the file's order; nothing is read for them."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Open a file and read its header; of a split model, any part's.

        Raises:
            ModelFileError: absent, damaged, truncated or lying; or a part is missing.
            UnsupportedModel: of a version or with a tensor type that Pagoda does not know.
        """
        self.path = Path(path)
        self._shards = Shards()
        guarded(self._shards, self._open)

    def _open(self) -> None:
        header = self._header(self.path)
        parts = header.metadata.get("split.count", 0)
        if type(parts) is int and parts > 1:
            header = self._join(parts)
        architecture = header.metadata.get("general.architecture")
        if not isinstance(architecture, str) or not architecture:
            what = "is missing" if architecture is None else f"is {architecture!r:.100}"
            raise ModelFileError(
                f"{self.path}: metadata 'general.architecture' {what}; a name such as 'llama' is expected"
            )
        self.architecture = architecture
        self._spans = header.spans
        self.metadata = MappingProxyType(header.metadata)
        self.tensors = MappingProxyType(header.tensors)

    def _header(self, path: Path) -> Header:
        shard = len(self._shards.paths)
        descriptor, size = self._shards.open(path, "the .gguf file itself")
        return read_header(descriptor, size, str(path), shard)

    def _join(self, parts: int) -> Header:
        """The headers of all parts as one: metadata of the first, tensors of all."""
        named = re.fullmatch(r"(.+)-(\d{5})-of-(\d{5})\.gguf", self.path.name)
        if not named or int(named[3]) != parts or parts > MOST_PARTS:
            raise ModelFileError(
                f"{self.path}: one of {parts} parts of a model, which are found by their names; this one should be "
                f"named NAME-00001-of-{parts:05}.gguf"
            )
        self._shards.close()
        self._shards = Shards()
        headers = [self._header(self.path.with_name(f"{named[1]}-{i + 1:05}-of-{named[3]}.gguf")) for i in range(parts)]
        tensors: dict[str, TensorInfo] = {}
        for i, (header, path) in enumerate(zip(headers, self._shards.paths, strict=True)):
            number, count = (header.metadata.get(f"split.{key}") for key in ("no", "count"))
            if (number, count) != (i, parts):
                raise ModelFileError(
                    f"{path}: says it is part {number!r:.20} of {count!r:.20}, its name says {i} of {parts}"
                )
            if twice := sorted(tensors.keys() & header.tensors.keys()):
                raise ModelFileError(f"{path}: tensor {twice[0]!r} is in another part too")
            tensors |= header.tensors
        wanted = headers[0].metadata.get("split.tensors.count", len(tensors))
        if wanted != len(tensors):
            raise ModelFileError(f"{self.path}: its parts hold {len(tensors)} tensors, and should hold {wanted!r:.20}")
        return Header(headers[0].version, headers[0].metadata, tensors, headers[0].spans)

    @property
    def name(self) -> str:
        """The file's path, for messages."""
        return str(self.path)

    def stored_metadata(self, key: str) -> bytes:
        """A key's type and value, as the (first) file has them.

        Raises:
            ModelFileError: the file has shrunk since it was opened.
        """
        begin, end = self._spans[key]
        return self._shards.piece(f"metadata {key!r}", 0, begin, end - begin).tobytes()

    def tensor(self, name: str) -> StoredTensor:
        """Read a tensor's bytes.

        Raises:
            ModelFileError: there is no such tensor, or the file has shrunk since it was opened.
            MemoryLimit: it does not fit into memory.
        """
        return self._shards.tensor(self._info(name))

    def batches(self, names: Iterable[str]) -> Iterator[list[StoredTensor]]:
        """Read several, as `Shards.batches`.

        Raises:
            ModelFileError, MemoryLimit: as `tensor`.
        """
        return self._shards.batches(map(self._info, names))

    def _info(self, name: str) -> TensorInfo:
        if name not in self.tensors:
            raise ModelFileError(f"{self.path}: has no tensor {name!r} among its {len(self.tensors)}")
        return self.tensors[name]

    def digest(self) -> str:
        """SHA-256 of the whole file, in hexadecimal, or of its parts' digests.

        Raises:
            ModelFileError: it cannot be read, or changed meanwhile.
        """
        return self._shards.digest()

    def close(self) -> None:
        """Let the file go; tensors read before stay good."""
        self._shards.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
