"""What the reference backend keeps between steps: keys and values in pages, and each sequence's tokens.

It checks what faster backends take on trust: page numbers, and that no slot is read that was not written.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import numpy as np
import numpy.typing as npt

from pagoda.backends.ops import Bytes, Floats, Ints, KVGroup, KVLayer, Unit

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


class ReferenceKVStore:
    """Keys and values as arrays [layers, pages, page_size, heads, head_dim] per group, in their stored form."""

    def __init__(self, groups: Sequence[KVGroup], pages: Sequence[int], page_size: int, kv_format: str) -> None:
        shapes = [(g.layers, n, page_size, g.heads, g.head_dim) for g, n in zip(groups, pages, strict=True)]
        sets = [{"int8": 1, "int4": 2 * -(-g.head_dim // BLOCK)}.get(kv_format, 0) for g in groups]
        self.groups = tuple(groups)
        self.page_size = page_size
        self.kv_format = kv_format
        self.written = [np.zeros(shape[:3], np.bool_) for shape in shapes]
        # Not a number until written: a slot read too early would spoil every result it reaches. Integers have no such
        # value: their scales have.
        kind = _KV_TYPES[kv_format]
        empty = np.nan if kv_format in ("f32", "f16") else 0
        self.keys, self.values = ([np.full(shape, empty, kind) for shape in shapes] for _ in range(2))
        self.key_scales, self.value_scales = (
            [np.full((*shape[:4], n), np.nan, np.float16) for shape, n in zip(shapes, sets, strict=True)]
            for _ in range(2)
        )

    def _arrays(self, group: int) -> tuple[Numbers, ...]:
        return self.keys[group], self.key_scales[group], self.values[group], self.value_scales[group]

    def copy(self, group: int, source: int, target: int, slots: int) -> None:
        """Copy the first `slots` slots of a page, in every layer."""
        self._check_pages(group, np.array([source, target]))
        if not 0 <= slots <= self.page_size:
            raise ValueError(f"a page has {self.page_size} slots, asked to copy {slots}")
        for array in (*self._arrays(group), self.written[group]):
            array[:, target, :slots] = array[:, source, :slots]

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
            for array in (*self._arrays(group), self.written[group]):
                part = array[:, page]
                part[...] = raw[at : at + part.nbytes].view(part.dtype).reshape(part.shape)
                at += part.nbytes

    def _parts(self, unit: Sequence[int]) -> list[bytes]:
        self._check_unit(unit)
        return [
            array[:, page].tobytes()
            for group, page in enumerate(unit)
            for array in (*self._arrays(group), self.written[group])
        ]

    def write(self, kv: KVLayer, pages: Ints, slots: Ints, k: Floats, v: Floats) -> None:
        """Store k and v [rows, heads * head_dim], row i in slot slots[i] of page pages[i]."""
        self._check_pages(kv.group, pages)
        if len(np.unique(pages.astype(np.int64) * self.page_size + slots)) != len(pages):
            raise ValueError(f"two rows of one step write the same slot of KV group {kv.group}")
        heads = [x.reshape(-1, kv.heads, kv.head_dim) for x in (k, v)]
        forms = [form for x in heads for form in stored(x, self.kv_format)]
        for array, form in zip(self._arrays(kv.group), forms, strict=True):
            array[kv.layer, pages, slots] = form
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
        k, k_scales, v, v_scales = (
            array[kv.layer, pages].reshape(len(pages) * self.page_size, *array.shape[3:])[wanted]
            for array in self._arrays(kv.group)
        )
        return restored(k, k_scales, self.kv_format), restored(v, v_scales, self.kv_format)

    def check(self) -> None:
        """Assert that written and unwritten slots are what they claim to be."""
        for group, written in enumerate(self.written):
            keys, k_scales, values, v_scales = self._arrays(group)
            assert keys.shape == values.shape
            assert written.shape == keys.shape[:3]
            floats = (keys, values) if self.kv_format in ("f32", "f16") else (k_scales, v_scales)
            for array in floats:
                assert np.isnan(array[~written]).all(), "a slot that was never written holds a number"
            for scales in (k_scales, v_scales):
                assert np.isfinite(scales[written]).all(), "a scale is not a number"

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
