"""Where a layer's channels can be scaled without a change of what it gives: down where they are made, up where they are
read.

Knows the names of tensors that families share: norms before matrices, values before the output projection (a head of
values is read by several heads), `up` before `down` (what multiplies it is not linear, but it is).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from pagoda import quant
from pagoda.backends.ops import Floats, StoredTensor
from pagoda.models.config import Config
from pagoda.quantize.awq import one_of_repeats
from pagoda.quantize.rows import numbers


@dataclass(frozen=True, slots=True)
class Group:
    """Matrices that read the same input, and what makes that input."""

    site: str
    """Where they are read."""
    maker: str
    """A norm's weights, or a matrix, or a part of one: its rows."""
    repeats: int
    size: int
    """Channels lie in runs of `size`, `repeats` of which in a row are made by the same rows."""


def groups(config: Config, i: int, sites: Mapping[str, Sequence[str]], has: Callable[[str], bool]) -> list[Group]:
    """Those of layer i, in the order of the layer."""
    heads = config.heads // config.kv_heads
    known = (
        Group(f"layers.{i}.qkv", f"blk.{i}.attn_norm.weight", 1, config.width),
        Group(f"layers.{i}.o", f"blk.{i}.attn_v.weight", heads, config.head_dim),
        Group(f"layers.{i}.gate_up", f"blk.{i}.ffn_norm.weight", 1, config.width),
        Group(f"layers.{i}.down", f"blk.{i}.ffn_up.weight", 1, config.hidden),
    )
    return [group for group in known if group.site in sites and has(group.maker)]


class Scaled:
    """A layer's tensors as numbers, some of them scaled.

    Args:
        name: of the model, for messages.
        tensors: as they are stored.
        config: the model's.
        i: the layer's number.
    """

    def __init__(self, name: str, tensors: Mapping[str, StoredTensor], config: Config, i: int) -> None:
        self._name, self._tensors = name, tensors
        self._floats: dict[str, Floats] = {}
        self._places: dict[str, tuple[str, int, int]] = {}
        for whole, parts in config.parts().items():
            begin = 0
            for part, rows in parts.items() if whole.startswith(f"blk.{i}.") else ():
                self._places[part] = (whole, begin, begin + rows)
                begin += rows
        self.changed: set[str] = set()
        """Names of what has been scaled."""

    def has(self, name: str) -> bool:
        """Whether there is a tensor or a part of this name."""
        return name in self._tensors or name in self._places

    def floats(self, name: str) -> Floats:
        """A tensor's numbers as they are by now."""
        if name not in self._floats:
            self._floats[name] = numbers(self._name, self._tensors[name])
        return self._floats[name]

    def apply(self, group: Group, readers: Sequence[str], scales: Floats) -> None:
        """Scale the columns of those that read up, and what makes the channels down."""
        for name in readers:
            self.floats(name)[...] *= scales
            self.changed.add(name)
        once = one_of_repeats(scales, group.repeats, group.size)
        whole, begin, end = self._places.get(group.maker, (group.maker, 0, len(once)))
        made = self.floats(whole)
        made[begin:end] /= once.reshape(-1, *[1] * (made.ndim - 1))
        self.changed.add(whole)
        bias = group.maker.removesuffix("weight") + "bias"
        if bias in self._tensors:
            self.floats(bias)[...] /= once
            self.changed.add(bias)

    def tensors(self) -> list[StoredTensor]:
        """All of them; what has been scaled is f32."""
        dense = quant.by_name("f32")
        return [
            StoredTensor(name, t.shape, dense, self._floats[name].reshape(-1).view(np.uint8))
            if name in self.changed
            else t
            for name, t in self._tensors.items()
        ]
