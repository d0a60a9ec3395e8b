"""A model whose dense matrices are quantised as they are read, a few at a time; everything else passes through.

Quantises rows as `quant` does, with the same bytes as a file that was quantised ahead of time; `quant.choice` says what
each tensor becomes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType, TracebackType
from typing import Self

from pagoda import quant
from pagoda.backends.ops import StoredTensor
from pagoda.catalog.gguf import TensorInfo
from pagoda.catalog.hf_directory import HuggingDirectory
from pagoda.catalog.model_file import ModelFile
from pagoda.config import FINER, split_format
from pagoda.errors import ModelFileError, UnsupportedModel


def _layer(name: str) -> int | None:
    """Of a tensor `blk.N.what.weight`: N."""
    first, _, rest = name.partition(".")
    number = rest.partition(".")[0]
    return int(number) if first == "blk" and number.isdecimal() else None


class Quantized:
    """`source`, in another weight format; it closes with this.

    Args:
        source: the model as it is stored.
        format: what dense matrices become: a name of `quant` that can be written; `q4_k:0,5` has the finer format in
            layers 0 and 5.

    Raises:
        UnsupportedModel: the format cannot be written, or names layers that the model has not.
    """

    def __init__(self, source: ModelFile | HuggingDirectory, format: str) -> None:
        self._source = source
        self._name = format
        base, layers = split_format(format)
        self._format = quant.quantizer(base)
        self._fine_layers = frozenset(layers)
        if unknown := self._fine_layers - set(map(_layer, source.tensors)):
            raise UnsupportedModel(f"{source.name} has no layer {min(unknown)} that {format} could leave finer")
        self.architecture = source.architecture
        self.metadata = source.metadata
        self.tensors: Mapping[str, TensorInfo] = MappingProxyType(
            {n: self._shown(t) for n, t in source.tensors.items()}
        )

    def _target(self, info: TensorInfo) -> quant.Quantizer | None:
        """What a tensor becomes; None if it stays: a vector, quantised already, or rows that are no whole blocks."""
        if info.format.name not in quant.DENSE:
            return None
        fine = _layer(info.name) in self._fine_layers
        return quant.choose(info.name, info.shape, FINER[self._format.name] if fine else self._format.name)

    def _shown(self, info: TensorInfo) -> TensorInfo:
        wanted = self._target(info)
        if wanted is None:
            return info
        numbers = info.size // info.format.block_bytes * info.format.block
        return replace(info, format=wanted, size=numbers // wanted.block * wanted.block_bytes)

    def batches(self, names: Iterable[str]) -> Iterator[list[StoredTensor]]:
        """Read and quantise several, a few at a time.

        Raises:
            ModelFileError: as the source's, or a matrix has numbers that are none.
        """
        for batch in self._source.batches(names):
            yield [self._quantized(tensor) for tensor in batch]

    def _quantized(self, tensor: StoredTensor) -> StoredTensor:
        wanted = self._target(self._source.tensors[tensor.name])
        if wanted is None:
            return tensor
        try:
            raw = wanted.quantize(tensor.floats().reshape(-1, wanted.block))
        except ValueError as error:
            raise ModelFileError(f"{self.name}: tensor {tensor.name!r}: {error}") from error
        return StoredTensor(tensor.name, tensor.shape, wanted, raw.reshape(-1))

    @property
    def name(self) -> str:
        """The source's, for messages."""
        return self._source.name

    def digest(self) -> str:
        """SHA-256 of the source's digest and the format."""
        return hashlib.sha256(f"{self._source.digest()} {self._name}".encode()).hexdigest()

    def close(self) -> None:
        """Let the source go."""
        self._source.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
