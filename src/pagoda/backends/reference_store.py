"""What the reference backend keeps between steps: keys and values in pages, and each sequence's tokens.

It checks what faster backends take on trust: page numbers, and that no slot is read that was not written.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import numpy as np
import numpy.typing as npt

from pagoda.backends.kv_formats import formats_by_layer
from pagoda.backends.ops import Bytes, Floats, Ints, KVFormats, KVGroup, KVLayer, Unit

Doubles = npt.NDArray[np.float64]
Numbers = npt.NDArray[Any]

_KV_TYPES = {"f32": np.float32, "f16": np.float16, "int8": np.int8, "int4": np.uint8}
BLOCK = 32
"""Elements of a head that share a scale and an offset in int4."""
LARGEST = np.float32(65504)
"""Of f16: scales and offsets are held within it."""


def turn(x: Numbers) -> Numbers:
    """x [..., dim] times a Walsh-Hadamard matrix, in runs of n elements: the largest power of two that divides dim.

    In x's own type, by the stages (i, i + 1), (i, i + 2), (i, i + 4) ...: a and b become a + b and a - b. Turned twice,
    a vector is n times what it was.
    """
    n = x.shape[-1] & -x.shape[-1]
    runs = x.reshape(-1, n)
    stage = 1
    while stage < n:
        pairs = runs.reshape(-1, 2, stage)
        runs = np.stack([pairs[:, 0] + pairs[:, 1], pairs[:, 0] - pairs[:, 1]], axis=1).reshape(-1, n)
        stage *= 2
    return runs.reshape(x.shape)


def _inverse(scale: Numbers) -> Floats:
    wide = scale.astype(np.float32)
    return np.where(wide > 0, np.float32(1) / np.where(wide > 0, wide, np.float32(1)), np.float32(0))


def quantise_int8(x: Floats) -> tuple[Numbers, Numbers]:
    """x [..., dim] as int8 with one f16 scale [..., 1] for a head. In f32, so that integers equal native ones."""
    scale = np.minimum(np.abs(x).max(-1, keepdims=True) / np.float32(127), LARGEST).astype(np.float16)
    return np.clip(np.rint(x * _inverse(scale)), -127, 127).astype(np.int8), scale


def quantise_int4(x: Floats) -> tuple[Numbers, Numbers]:
    """x [..., dim] as integers q in [0, 15] and, for each block of 32, f16 scale and offset [..., 2 * blocks].

    x is about (q - 7.5) * scale + offset.
    """
    integers = np.empty(x.shape, np.uint8)
    scales = np.empty((*x.shape[:-1], -(-x.shape[-1] // BLOCK), 2), np.float16)
    for i, start in enumerate(range(0, x.shape[-1], BLOCK)):
        block = x[..., start : start + BLOCK]
        low, high = block.min(-1), block.max(-1)
        scales[..., i, 0] = np.minimum((high - low) / np.float32(15), LARGEST)
        scales[..., i, 1] = np.clip((high + low) * np.float32(0.5), -LARGEST, LARGEST)
        scaled = (block - scales[..., i, 1:].astype(np.float32)) * _inverse(scales[..., i, :1])
        integers[..., start : start + BLOCK] = np.clip(np.rint(scaled + np.float32(7.5)), 0, 15)
    return integers, scales.reshape(*x.shape[:-1], -1)


def stored(x: Floats, kv_format: str) -> tuple[Numbers, Numbers]:
    """Heads [..., dim] in their stored form: numbers [..., dim], scales [..., sets] (no sets for floats)."""
    if kv_format in ("int8", "int4"):
        with np.errstate(over="ignore", invalid="ignore"):
            turned = turn(x)
        finite = np.where(np.isfinite(turned), turned, np.float32(0))
        return quantise_int8(finite) if kv_format == "int8" else quantise_int4(finite)
    # Numbers that f16 does not hold become infinite, as in hardware.
    with np.errstate(over="ignore"):
        return x.astype(_KV_TYPES[kv_format]), np.zeros((*x.shape[:-1], 0), np.float16)


def restored(numbers: Numbers, scales: Numbers, kv_format: str) -> Doubles:
    """What a stored form stands for, exactly."""
    dim = numbers.shape[-1]
    wide, by = numbers.astype(np.float64), scales.astype(np.float64)
    if kv_format == "int8":
        wide *= by
    elif kv_format == "int4":
        scale, offset = (by[..., i::2].repeat(BLOCK, -1)[..., :dim] for i in range(2))
        wide = (wide - 7.5) * scale + offset
    else:
        return wide
    turned: Doubles = turn(wide) / (dim & -dim)
    return turned


@dataclass(frozen=True, slots=True)
class ReferenceTransfer:
    """Pages that have been moved already."""

    saved: list[Bytes]
    seconds: float

    def wait(self) -> tuple[list[Bytes], float]:
        """At once."""
        return self.saved, self.seconds


class StoredLayer:
    """Keys and values of one layer: arrays [pages, page_size, heads, head_dim] and their scales, in one format."""

    def __init__(self, group: KVGroup, pages: int, page_size: int, kv_format: str) -> None:
        shape = (pages, page_size, group.heads)
        sets = {"int8": 1, "int4": 2 * -(-group.head_dim // BLOCK)}.get(kv_format, 0)
        self.kv_format = kv_format
        # Not a number until written: a slot read too early would spoil every result it reaches. Integers have no such
        # value: their scales have.
        empty = np.nan if kv_format in ("f32", "f16") else 0
        self.keys, self.values = (np.full((*shape, group.head_dim), empty, _KV_TYPES[kv_format]) for _ in range(2))
        self.key_scales, self.value_scales = (np.full((*shape, sets), np.nan, np.float16) for _ in range(2))

    @property
    def arrays(self) -> tuple[Numbers, ...]:
        """All of them; the first axes are page and slot."""
        return self.keys, self.key_scales, self.values, self.value_scales


class ReferenceKVStore:
    """Pages of keys and values, in their stored form, for each layer of each group."""

    def __init__(self, groups: Sequence[KVGroup], pages: Sequence[int], page_size: int, kv_format: KVFormats) -> None:
        self.groups = tuple(groups)
        self.page_size = page_size
        self.written = [np.zeros((g.layers, n, page_size), np.bool_) for g, n in zip(groups, pages, strict=True)]
        self.layers = [
            [StoredLayer(g, n, page_size, form) for form in formats]
            for g, n, formats in zip(groups, pages, formats_by_layer(groups, kv_format), strict=True)
        ]

    def _arrays(self, group: int, page: int) -> Iterator[npt.NDArray[Any]]:
        """Views of one page: all that is kept of it."""
        for layer, written in zip(self.layers[group], self.written[group], strict=True):
            yield from (array[page] for array in (*layer.arrays, written))

    def copy(self, group: int, source: int, target: int, slots: int) -> None:
        """Copy the first `slots` slots of a page, in every layer."""
        self._check_pages(group, np.array([source, target]))
        if not 0 <= slots <= self.page_size:
            raise ValueError(f"a page has {self.page_size} slots, asked to copy {slots}")
        for to, came in zip(self._arrays(group, target), self._arrays(group, source), strict=True):
            to[:slots] = came[:slots]

    @property
    def unit_bytes(self) -> int:
        """Bytes of one page of every group, all layers."""
        return sum(len(part) for part in self._parts((0,) * len(self.groups)))

    def transfer(self, saves: Sequence[Unit], loads: Sequence[tuple[Unit, Bytes]]) -> ReferenceTransfer:
        """Copy pages out, then others in."""
        began = perf_counter()
        saved = [self.read_unit(unit) for unit in saves]
        for unit, raw in loads:
            self.write_unit(unit, raw)
        return ReferenceTransfer(saved, perf_counter() - began)

    def read_unit(self, unit: Sequence[int]) -> Bytes:
        """The bytes of one page of each group."""
        return np.frombuffer(b"".join(self._parts(unit)), np.uint8)

    def write_unit(self, unit: Sequence[int], raw: Bytes) -> None:
        """Put back what `read_unit` gave, in the same or another page of each group."""
        self._check_unit(unit)
        if raw.size != self.unit_bytes:
            raise ValueError(f"a page of each group has {self.unit_bytes} bytes, got {raw.size}")
        at = 0
        for group, page in enumerate(unit):
            for part in self._arrays(group, page):
                part[...] = raw[at : at + part.nbytes].view(part.dtype).reshape(part.shape)
                at += part.nbytes

    def _parts(self, unit: Sequence[int]) -> list[bytes]:
        self._check_unit(unit)
        return [part.tobytes() for group, page in enumerate(unit) for part in self._arrays(group, page)]

    def write(self, kv: KVLayer, pages: Ints, slots: Ints, k: Floats, v: Floats) -> None:
        """Store k and v [rows, heads * head_dim], row i in slot slots[i] of page pages[i]."""
        self._check_pages(kv.group, pages)
        if len(np.unique(pages.astype(np.int64) * self.page_size + slots)) != len(pages):
            raise ValueError(f"two rows of one step write the same slot of KV group {kv.group}")
        heads = [x.reshape(-1, kv.heads, kv.head_dim) for x in (k, v)]
        layer = self.layers[kv.group][kv.layer]
        forms = [form for x in heads for form in stored(x, layer.kv_format)]
        for array, form in zip(layer.arrays, forms, strict=True):
            array[pages, slots] = form
        self.written[kv.group][kv.layer, pages, slots] = True

    def read(self, kv: KVLayer, table: Ints, begin: int, end: int) -> tuple[Doubles, Doubles]:
        """Keys and values of positions begin to end - 1 of the sequence with this page table: [count, heads, dim]."""
        first = begin // self.page_size
        pages = table[first : -(-end // self.page_size)]
        wanted = slice(begin - first * self.page_size, end - first * self.page_size)
        self._check_pages(kv.group, pages)
        missing = ~self.written[kv.group][kv.layer, pages].reshape(-1)[wanted]
        if missing.any():
            position = begin + int(missing.argmax())
            raise ValueError(f"position {position} of KV group {kv.group} is read but was never written")
        layer = self.layers[kv.group][kv.layer]
        k, k_scales, v, v_scales = (
            array[pages].reshape(len(pages) * self.page_size, *array.shape[2:])[wanted] for array in layer.arrays
        )
        return restored(k, k_scales, layer.kv_format), restored(v, v_scales, layer.kv_format)

    def check(self) -> None:
        """Assert that written and unwritten slots are what they claim to be."""
        for layers, of_group in zip(self.layers, self.written, strict=True):
            for layer, written in zip(layers, of_group, strict=True):
                assert layer.keys.shape == layer.values.shape
                assert written.shape == layer.keys.shape[:2]
                scales = (layer.key_scales, layer.value_scales)
                for array in (layer.keys, layer.values) if layer.kv_format in ("f32", "f16") else scales:
                    assert np.isnan(array[~written]).all(), "a slot that was never written holds a number"
                for array in scales:
                    assert np.isfinite(array[written]).all(), "a scale is not a number"

    def _check_unit(self, unit: Sequence[int]) -> None:
        if len(unit) != len(self.groups):
            raise ValueError(f"there are {len(self.groups)} KV groups, got pages {tuple(unit)}")
        for group, page in enumerate(unit):
            self._check_pages(group, np.array([page]))

    def _check_pages(self, group: int, pages: npt.NDArray[Any]) -> None:
        have = self.written[group].shape[1]
        if len(pages) and not 0 <= pages.min() <= pages.max() < have:
            raise ValueError(f"KV group {group} has pages 0 to {have - 1}, got {pages.tolist()}")


class ReferenceSlots:
    """Each running sequence's prompt and output, by slot."""

    def __init__(self) -> None:
        self._prompts: dict[int, list[int]] = {}
        self._outputs: dict[int, list[int]] = {}

    def start(self, slot: int, prompt: Ints) -> None:
        """A new sequence takes the slot; its output is empty."""
        if slot < 0:
            raise ValueError(f"slots are numbered from 0, got {slot}")
        self._prompts[slot] = prompt.tolist()
        self._outputs[slot] = []

    def tokens(self, slot: int) -> tuple[list[int], list[int]]:
        """The prompt and the output of the sequence in a slot."""
        if slot not in self._prompts:
            raise ValueError(f"no sequence has started in slot {slot}")
        return self._prompts[slot], self._outputs[slot]

    def push(self, slot: int, token: int) -> None:
        """Append to a sequence's output."""
        self.tokens(slot)[1].append(token)

    def last(self, slot: int) -> int:
        """The token sampled last."""
        output = self.tokens(slot)[1]
        if not output:
            raise ValueError(f"a row waits for a token of slot {slot}, of which none has been sampled")
        return output[-1]

    def guess(self, slot: int, i: int) -> int:
        """Token i of the output."""
        output = self.tokens(slot)[1]
        if i >= len(output):
            raise ValueError(
                f"a row waits for a token of slot {slot}: {len(output)} have been sampled, {i + 1} are needed"
            )
        return output[i]

    def check(self) -> None:
        """Assert that every slot taken has a prompt and an output."""
        assert self._prompts.keys() == self._outputs.keys()
