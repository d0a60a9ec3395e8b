"""Model families, one readable file each, written against `Ops`; and which family an architecture's name means."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Protocol

import numpy as np

from pagoda.backends.ops import Ints, RopeTable, StoredFormat, StoredTensor, Weight
from pagoda.errors import ModelError, ModelFileError, UnsupportedModel
from pagoda.models.config import Config
from pagoda.models.decoder import Decoder
from pagoda.models.gemma import Gemma
from pagoda.models.gpt_oss import GptOss
from pagoda.models.llama import Llama
from pagoda.models.metadata import Metadata
from pagoda.models.mixtral import Mixture
from pagoda.models.phi3 import Phi3
from pagoda.models.qwen2 import Qwen2
from pagoda.models.qwen3 import Qwen3
from pagoda.models.smollm3 import SmolLM3

FAMILIES: dict[str, type[Decoder]] = {
    "llama": Llama,
    "qwen2": Qwen2,
    "qwen3": Qwen3,
    "gemma2": Gemma,
    "gemma3": Gemma,
    "phi3": Phi3,
    "smollm3": SmolLM3,
    "qwen3moe": Mixture,
    "olmoe": Mixture,
    "gpt-oss": GptOss,
}
"""Architecture, as a model file names it -> its family."""


def family(metadata: Metadata) -> type[Decoder]:
    """A file's family: its architecture's, but that GGUF files call Mixtral a llama with experts."""
    if metadata.architecture == "llama" and metadata.has("expert_count"):
        return Mixture
    return FAMILIES[metadata.architecture]


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

    @property
    def order(self) -> Ints | None:
        """As `StoredTensor.order`."""
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
        """Several, in any order, a few at a time; a tensor may not be read before its bytes are wanted."""
        ...


class RopeMaker(Protocol):
    """A backend's `rope_table`."""

    def __call__(self, frequencies: Sequence[float], positions: int, *, adjacent: bool, magnitude: float) -> RopeTable:
        """The angles."""
        ...


def read_config(source: Source) -> Config:
    """The hyperparameters, checked against the tensors that are there.

    Raises:
        UnsupportedModel: the architecture is not known, or the file has tensors that it does not use.
        ModelFileError: a key or tensor is missing, or a tensor has another shape than the keys say.
    """
    shapes = {name: tuple(t.shape) for name, t in source.tensors.items()}
    if source.architecture not in FAMILIES:
        raise UnsupportedModel(f"{source.name}: architecture {source.architecture!r} is not known; {_nearest(source)}")
    metadata = Metadata(source.name, source.architecture, source.metadata)
    config = family(metadata).read(metadata, shapes)
    for name, shape in config.tensors().items():
        if name not in shapes:
            raise ModelFileError(f"{source.name}: tensor {name!r} of shape {shape} is missing")
        if shapes[name] != shape:
            raise ModelFileError(f"{source.name}: tensor {name!r} must have shape {shape}, found {shapes[name]}")
    unused = sorted(set(shapes) - set(config.tensors()))
    if unused:  # a bias or a norm passed over would give other outputs and no error
        raise UnsupportedModel(
            f"{source.name}: the family {source.architecture!r} has no use for {_some(unused)}: "
            "the file is of another kind than it says, and would give wrong outputs"
        )
    return config


def _some(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names[:3])) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _nearest(source: Source) -> str:
    """The family that needs most nearly the tensors that are there, and what differs."""
    shapes, own = {name: tuple(t.shape) for name, t in source.tensors.items()}, source.architecture + "."
    found = []
    for name, kind in FAMILIES.items():
        values = {
            key.replace(own, name + ".", 1) if key.startswith(own) else key: v for key, v in source.metadata.items()
        }
        try:
            needed = kind.read(Metadata(source.name, name, values), shapes).tensors()
        except ModelError:
            continue
        lacking = sorted(n for n, shape in needed.items() if shapes.get(n) != shape)
        unused = sorted(set(shapes) - set(needed))
        like = difflib.SequenceMatcher(None, source.architecture, name).ratio()
        found.append((len(lacking) + len(unused), -like, name, lacking, unused))
    if not found:
        near = difflib.get_close_matches(source.architecture, FAMILIES, 1, 0.0)
        return f"the nearest that is: {near[0]!r}"
    _, _, name, lacking, unused = min(found)
    differs = [f"it lacks {_some(lacking)}"] * bool(lacking) + [f"it has {_some(unused)} besides"] * bool(unused)
    return f"the nearest that is: {name!r}; " + (
        " and ".join(differs) or "its tensors are the same, but what is computed with them may differ"
    )


def stored(source: Source, config: Config) -> dict[str, tuple[str, tuple[int, ...]]]:
    """The format and shape of each weight that the model multiplies by, tensors of several parts cut up."""
    parts, factors = config.parts(), config.factor_tensors()
    weights: dict[str, tuple[str, tuple[int, ...]]] = {}
    for name, shape in config.tensors().items():
        form = source.tensors[name].format.name
        if name not in factors:
            cut = parts.get(name, {name: shape[0]})
            weights |= {part: (form, (rows, *shape[-1:]) if len(shape) > 1 else shape) for part, rows in cut.items()}
    return weights


def orders(source: Source, config: Config) -> dict[str, Ints]:
    """The order of columns of each weight that has one of its own, tensors of several parts cut up."""
    cut = config.parts()
    found = {name: source.tensors[name].order for name in config.tensors()}
    return {part: order for name, order in found.items() if order is not None for part in cut.get(name, {name: 0})}


def _family_of(source: Source) -> type[Decoder]:
    return family(Metadata(source.name, source.architecture, source.metadata))


def outline(source: Source, config: Config, weight: Callable[[str], Weight]) -> Decoder:
    """The model over weights that stand in for its own, with no rotary angles: to count with, not to run."""
    tables = [RopeTable(none := np.zeros((0, n // 2), np.float32), none, True) for n in config.table_dims]
    return _family_of(source)(config, weight, tables)


def build(
    source: Source,
    config: Config,
    pack: Callable[[Sequence[StoredTensor]], Sequence[Weight]],
    rope: RopeMaker,
    positions: int,
) -> Decoder:
    """Read and pack every tensor, a few at a time, and put the model together.

    Args:
        source: where tensors come from.
        config: from `read_config`.
        pack: the backend's `weights`: of each batch, in its order.
        rope: the backend's `rope_table`.
        positions: how many positions will ever be used.
    """
    parts, factors = config.parts(), config.factor_tensors()
    weights: dict[str, Weight] = {}
    for batch in source.batches(n for n in config.tensors() if n not in factors):
        pieces = [piece for tensor in batch for piece in cut(tensor, parts.get(tensor.name))]
        weights |= {p.name: weight for p, weight in zip(pieces, pack(pieces), strict=True)}
    return assemble(source, config, weights.__getitem__, rope, positions)


def assemble(
    source: Source, config: Config, weight: Callable[[str], Weight], rope: RopeMaker, positions: int
) -> Decoder:
    """The model over weights that are packed already, or will be when they are asked for.

    Args:
        source: where rotary factors come from.
        config: from `read_config`.
        weight: a tensor's name -> the backend's weight.
        rope: the backend's `rope_table`.
        positions: how many positions will ever be used.

    Raises:
        ModelFileError: rotary factors are absurd.
    """
    numbers = {t.name: t.floats() for batch in source.batches(config.factor_tensors()) for t in batch}
    for name, values in numbers.items():
        if not (np.isfinite(values).all() and (values > 0).all()):
            raise ModelFileError(f"{source.name}: tensor {name!r} must hold positive factors, found {values.min()}")
    tables = [
        rope(r.frequencies, positions, adjacent=r.adjacent, magnitude=r.magnitude)
        for r in config.rotations(lambda name: [float(x) for x in numbers[name]], positions)
    ]
    return _family_of(source)(config, weight, tables)


def cut(tensor: StoredTensor, parts: Mapping[str, int] | None) -> list[StoredTensor]:
    """A tensor's parts, one below the other: rows of any format are whole blocks, so cutting changes no number."""
    if parts is None:
        return [tensor]
    width, stored = tensor.shape[-1], tensor.stored
    row = width // tensor.format.block * tensor.format.block_bytes
    pieces, at = [], 0
    for name, rows in parts.items():
        begin, size = at * row, rows * row
        part = stored[begin : begin + size] if isinstance(stored, np.ndarray) else stored.part(begin, size)
        pieces.append(StoredTensor(name, (rows, width), tensor.format, part, tensor.order))
        at += rows
    return pieces
