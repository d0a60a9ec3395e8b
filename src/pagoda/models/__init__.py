"""Model families, one readable file each, written against `Ops`; and which family an architecture's name means."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Protocol

import numpy as np

from pagoda.backends.ops import Model, RopeTable, StoredFormat, StoredTensor, Weight
from pagoda.errors import ModelFileError, UnsupportedModel
from pagoda.models.llama import Llama, LlamaConfig
from pagoda.models.metadata import Metadata
from pagoda.models.rotary import frequencies

FAMILIES = {"llama": (LlamaConfig, Llama)}
"""Architecture, as a model file names it -> its configuration and its model."""


class TensorShape(Protocol):
    """What is known of a tensor before it is read."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Outermost first."""
        ...

    @property
    def format(self) -> StoredFormat:
        """How its numbers lie in the file."""
        ...


class Source(Protocol):
    """A model file, as far as this room looks at it."""

    architecture: str

    @property
    def name(self) -> str:
        """For messages."""
        ...

    @property
    def metadata(self) -> Mapping[str, object]:
        """Keys and values."""
        ...

    @property
    def tensors(self) -> Mapping[str, TensorShape]:
        """Shapes and formats by name."""
        ...

    def batches(self, names: Iterable[str]) -> Iterator[list[StoredTensor]]:
        """Read several, in any order, a few at a time."""
        ...


def read_config(source: Source) -> LlamaConfig:
    """The hyperparameters, checked against the tensors that are there.

    Raises:
        UnsupportedModel: the architecture is not known, or the file has tensors that it does not use.
        ModelFileError: a key or tensor is missing, or a tensor has another shape than the keys say.
    """
    if source.architecture not in FAMILIES:
        near = difflib.get_close_matches(source.architecture, FAMILIES, 1, 0.0)
        raise UnsupportedModel(
            f"{source.name}: architecture {source.architecture!r} is not known; the nearest that is: {near[0]!r}"
        )
    shapes = {name: tuple(t.shape) for name, t in source.tensors.items()}
    config_type, _ = FAMILIES[source.architecture]
    config = config_type.read(Metadata(source.name, source.architecture, source.metadata), shapes)
    for name, shape in config.tensors().items():
        if name not in shapes:
            raise ModelFileError(f"{source.name}: tensor {name!r} of shape {shape} is missing")
        if shapes[name] != shape:
            raise ModelFileError(f"{source.name}: tensor {name!r} must have shape {shape}, found {shapes[name]}")
    _refuse_unused(source, sorted(set(shapes) - set(config.tensors())))
    return config


def _refuse_unused(source: Source, unused: list[str]) -> None:
    """A bias or a norm that the family does not have, passed over, would give other outputs and no error."""
    if unused:
        named = ", ".join(map(repr, unused[:3])) + (f" and {len(unused) - 3} more" if len(unused) > 3 else "")
        raise UnsupportedModel(
            f"{source.name}: the family {source.architecture!r} has no use for {named}: "
            "the file is of another kind than it says, and would give wrong outputs"
        )


def outline(source: Source, config: LlamaConfig, weight: Callable[[str], Weight]) -> Model:
    """The model over weights that stand in for its own, with no rotary table: to count with, not to run."""
    none = np.zeros((0, config.rope_dims // 2), np.float32)
    _, model = FAMILIES[source.architecture]
    return model(config, weight, RopeTable(none, none, True))


def build(
    source: Source,
    config: LlamaConfig,
    pack: Callable[[Sequence[StoredTensor]], Sequence[Weight]],
    rope: Callable[[list[float], int], RopeTable],
    positions: int,
) -> Model:
    """Read and pack every tensor, a few at a time, and put the model together.

    Args:
        source: where tensors come from.
        config: from `read_config`.
        pack: the backend's `weights`: of each batch, in its order.
        rope: frequencies and positions -> the backend's table, of adjacent pairs.
        positions: how many positions will ever be used.
    """
    weights = {
        tensor.name: weight
        for batch in source.batches(config.tensors())
        for tensor, weight in zip(batch, pack(batch), strict=True)
    }
    table = rope(frequencies(config.rope_base, config.rope_dims), positions)
    _, model = FAMILIES[source.architecture]
    return model(config, weights.__getitem__, table)
