"""What a quantised file will hold: metadata, tensors with their formats and places, and the units it is made in.

Files are laid out as converters of checkpoints lay them out, for every reader of GGUF: a mixture's experts of a kind in
one tensor, and rotary pairs as the family keeps them. Reads no tensor.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from pagoda import quant
from pagoda.catalog import AnyModel, ModelFile
from pagoda.catalog.gguf_head import HeadTensor, encode, head, padding
from pagoda.errors import ModelFileError
from pagoda.models import family, read_config
from pagoda.models.config import Config
from pagoda.models.metadata import Metadata

FILE_TYPES = {
    "f32": 0, "f16": 1, "q4_0": 2, "q4_1": 3, "q8_0": 7, "q5_0": 8, "q5_1": 9, "q4_k": 14, "q5_k": 16, "q6_k": 18,
    "bf16": 32,
}  # fmt: skip
"""What matrices can become -> llama.cpp's number for a file of mostly these (`general.file_type`)."""
FORMATS = tuple(FILE_TYPES)
_DROPPED = ("split.no", "split.count", "split.tensors.count", "general.file_type", "general.quantization_version")
_REAL = re.compile(
    r"\.freq_base\w*$|\.rope\.scaling\.(factor|attn_factor|yarn_\w+_(fast|slow))$|_epsilon$|\.attention\.scale$"
    r"|softcapping$|^general\.sampling\.(temp|top_p|min_p|penalty_repeat)$"
)
"""Keys whose values are f32 even where a checkpoint's configuration writes a whole number."""


@dataclass(frozen=True, slots=True)
class Output:
    """A tensor of the new file."""

    name: str
    shape: tuple[int, ...]
    format: str
    sources: tuple[str, ...]
    """Tensors of the model that it consists of, one below the other."""
    size: int
    """Bytes."""
    offset: int = 0
    """Bytes from the beginning of the tensors' data."""
    turned: tuple[int, int] | None = None
    """If its rows must be put in another order, for rotary pairs that lie side by side: rows and rotated rows of a
    head."""
    fallback: bool = False
    """Whether its rows are no whole blocks of what was asked for."""

    @property
    def rows(self) -> int:
        """All but the last dimension."""
        return int(np.prod(self.shape[:-1], dtype=np.int64))


@dataclass(frozen=True, slots=True)
class Unit:
    """What is computed, written and noted as done together: a layer, or some tensors outside of them."""

    label: str
    layer: int | None
    outputs: tuple[Output, ...]

    @property
    def end(self) -> int:
        """Bytes of tensors' data up to here."""
        return self.outputs[-1].offset + self.outputs[-1].size


@dataclass(frozen=True, slots=True)
class Layout:
    """The whole file."""

    config: Config
    head: bytes
    units: tuple[Unit, ...]
    alignment: int

    @property
    def outputs(self) -> tuple[Output, ...]:
        """Every tensor, in the file's order."""
        return tuple(output for unit in self.units for output in unit.outputs)

    @property
    def size(self) -> int:
        """Bytes of the file."""
        return len(self.head) + self.units[-1].end


def lay_out(source: AnyModel, format: str, outer: str) -> Layout:
    """Plan the file.

    Args:
        source: the model.
        format: of layers' matrices.
        outer: of the embedding and the vocabulary projection.

    Raises:
        UnsupportedModel, ModelFileError: the model is of a kind that Pagoda does not know, or damaged.
    """
    config = read_config(source)
    turned = _turned(source, config)
    units, at, alignment = [], 0, _alignment(source)
    for label, layer, members in _units(config):
        outputs = []
        for name, sources in members:
            output = _output(source, name, sources, format, outer, turned)
            outputs.append(replace(output, offset=at))
            at += output.size + padding(output.size, alignment)
        units.append(Unit(label, layer, tuple(outputs)))
    table = [HeadTensor(o.name, o.shape, o.format, o.offset) for unit in units for o in unit.outputs]
    return Layout(config, head(_metadata(source, format), table, alignment), tuple(units), alignment)


def _alignment(source: AnyModel) -> int:
    found = source.metadata.get("general.alignment", 32)
    return found if isinstance(found, int) else 32


_Members = tuple[str, int | None, list[tuple[str, tuple[str, ...]]]]
"""A unit's label and layer, and its tensors with those they consist of."""


def _units(config: Config) -> list[_Members]:
    """Names of each unit's tensors, with those they consist of; what comes first in the model comes first."""
    outer, last = list(config.outer()), ("output_norm.weight", "output.weight")
    units: list[_Members] = [("embedding", None, [(name, (name,)) for name in outer if name not in last])]
    for i in range(config.layers):
        members: dict[str, tuple[str, ...]] = {}
        for name in config.block():
            whole = re.sub(r"^(ffn_\w+)\.\d+\.weight$", r"\1_exps.weight", name)
            members[f"blk.{i}.{whole}"] = (*members.get(f"blk.{i}.{whole}", ()), f"blk.{i}.{name}")
        units.append((f"layer {i}", i, list(members.items())))
    units.append(("output", None, [(name, (name,)) for name in outer if name in last]))
    return units


def _turned(source: AnyModel, config: Config) -> dict[str, tuple[int, int]]:
    """Ends of names of tensors whose rows must be put in another order: the family keeps rotary pairs side by side, and
    this model does not."""
    plain = {k: v for k, v in source.metadata.items() if not k.endswith(".rope.adjacent")}
    metadata = Metadata(source.name, source.architecture, plain)
    usual = family(metadata).read(metadata, {name: t.shape for name, t in source.tensors.items()})
    if usual.adjacent == config.adjacent:
        return {}
    if config.adjacent:
        raise ModelFileError(f"{source.name}: rotary pairs lie side by side, which no file of its family has")
    return {
        f"{name}.{kind}": (config.head_dim, config.rope_dims)
        for name in ("attn_q", "attn_k")
        for kind in ("weight", "bias")
    }


def _output(
    source: AnyModel,
    name: str,
    sources: tuple[str, ...],
    format: str,
    outer: str,
    turned: Mapping[str, tuple[int, int]],
) -> Output:
    infos = [source.tensors[each] for each in sources]
    own = tuple(infos[0].shape)
    shape = own if sources == (name,) else (len(sources), *own)
    wanted = quant.choose(name, shape, format, outer)
    kept = infos[0].format.name if quant.is_matrix(name, shape) and infos[0].format.name in quant.DENSE else "f32"
    chosen = wanted.name if wanted else kept
    stored = quant.by_name(chosen)
    size = int(np.prod(shape, dtype=np.int64)) // stored.block * stored.block_bytes
    asked = outer if name in quant.OUTER else format
    fallback = quant.is_matrix(name, shape) and chosen != asked
    return Output(name, shape, chosen, sources, size, 0, turned.get(name.split(".", 2)[-1]), fallback)


def _metadata(source: AnyModel, format: str) -> dict[str, bytes]:
    """The model's own, as it is stored if it is a GGUF file; besides, what the file's tensors mostly are."""
    kept = [key for key in source.metadata if key not in _DROPPED and not key.endswith(".rope.adjacent")]
    if isinstance(source, ModelFile):
        found = {key: source.stored_metadata(key) for key in kept}
    else:
        found = {key: _encoded(source, key) for key in kept}
    return found | {
        "general.file_type": encode(FILE_TYPES[format]),
        "general.quantization_version": encode(2),
    }


def _encoded(source: AnyModel, key: str) -> bytes:
    value = source.metadata[key]
    if _REAL.search(key) and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    try:
        return encode(bytes(value) if key.endswith("precompiled_charsmap") and isinstance(value, list) else value)
    except ValueError as error:
        raise ModelFileError(f"{source.name}: {key!r} cannot be written: {error}") from error


def turn_order(rows: int, turned: tuple[int, int]) -> npt.NDArray[np.int64]:
    """For each row of the new order, the row it was: of each head, the first half of the rotated rows and the second
    become pairs."""
    head_rows, rotated = turned
    order = np.arange(head_rows)
    order[:rotated] = np.arange(rotated).reshape(2, -1).T.reshape(-1)
    whole: npt.NDArray[np.int64] = (np.arange(0, rows, head_rows)[:, None] + order).reshape(-1)
    return whole


def quantised_formats(source: AnyModel) -> Sequence[str]:
    """The formats of the model's matrices that are no longer dense."""
    found = {t.format.name for t in source.tensors.values()} - set(quant.DENSE)
    return sorted(found)
