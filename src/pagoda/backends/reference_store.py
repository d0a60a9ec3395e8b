"""What the reference backend keeps between steps: keys and values in pages, and each sequence's tokens.

It checks what faster backends take on trust: page numbers, and that no slot is read that was not written.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from pagoda.backends.ops import Floats, Ints, KVGroup, KVLayer

Doubles = npt.NDArray[np.float64]

_KV_TYPES = {"f32": np.float32, "f16": np.float16}


class ReferenceKVStore:
    """Keys and values as arrays [layers, pages, page_size, heads, head_dim] per group, in their stored type."""

    def __init__(self, groups: Sequence[KVGroup], pages: Sequence[int], page_size: int, kv_format: str) -> None:
        shapes = [(g.layers, n, page_size, g.heads, g.head_dim) for g, n in zip(groups, pages, strict=True)]
        kind = _KV_TYPES[kv_format]
        self.groups = tuple(groups)
        self.page_size = page_size
        # Not a number until written: a slot read too early would spoil every result it reaches.
        self.keys = [np.full(shape, np.nan, kind) for shape in shapes]
        self.values = [np.full(shape, np.nan, kind) for shape in shapes]
        self.written = [np.zeros(shape[:3], np.bool_) for shape in shapes]

    def copy(self, group: int, source: int, target: int, slots: int) -> None:
        """Copy the first `slots` slots of a page, in every layer."""
        self._check_pages(group, np.array([source, target]))
        if not 0 <= slots <= self.page_size:
            raise ValueError(f"a page has {self.page_size} slots, asked to copy {slots}")
        for array in (self.keys[group], self.values[group], self.written[group]):
            array[:, target, :slots] = array[:, source, :slots]

    def write(self, kv: KVLayer, pages: Ints, slots: Ints, k: Floats, v: Floats) -> None:
        """Store k and v [rows, heads * head_dim], row i in slot slots[i] of page pages[i]."""
        self._check_pages(kv.group, pages)
        if len(np.unique(pages.astype(np.int64) * self.page_size + slots)) != len(pages):
            raise ValueError(f"two rows of one step write the same slot of KV group {kv.group}")
        for array, x in ((self.keys[kv.group], k), (self.values[kv.group], v)):
            # Numbers that f16 does not hold become infinite, as in hardware.
            with np.errstate(over="ignore"):
                array[kv.layer, pages, slots] = x.reshape(-1, kv.heads, kv.head_dim).astype(array.dtype)
        self.written[kv.group][kv.layer, pages, slots] = True

    def read(self, kv: KVLayer, table: Ints, count: int) -> tuple[Doubles, Doubles]:
        """Keys and values of positions 0 to count - 1 of the sequence with this page table: [count, heads, dim]."""
        pages = table[: -(-count // self.page_size)]
        self._check_pages(kv.group, pages)
        missing = ~self.written[kv.group][kv.layer, pages].reshape(-1)[:count]
        if missing.any():
            raise ValueError(f"position {int(missing.argmax())} of KV group {kv.group} is read but was never written")
        k, v = (
            array[kv.layer, pages].reshape(-1, kv.heads, kv.head_dim)[:count].astype(np.float64)
            for array in (self.keys[kv.group], self.values[kv.group])
        )
        return k, v

    def check(self) -> None:
        """Assert that written and unwritten slots are what they claim to be."""
        for keys, values, written in zip(self.keys, self.values, self.written, strict=True):
            assert keys.shape == values.shape
            assert written.shape == keys.shape[:3]
            for array in (keys, values):
                assert np.isnan(array[~written]).all(), "a slot that was never written holds a number"

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

    def check(self) -> None:
        """Assert that every slot taken has a prompt and an output."""
        assert self._prompts.keys() == self._outputs.keys()
