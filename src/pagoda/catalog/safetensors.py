"""Headers of safetensors files: the table of tensors.

Knows the layout (8 bytes of length, JSON, data; the format's own description). Believes nothing: every offset is held
against the file's size and every size against its shape before anything is allocated for it. Does not read tensors.
"""

from __future__ import annotations

import json
import math
import os
from collections import Counter
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NoReturn, TypeGuard

from pagoda.errors import ModelFileError

MAX_HEADER = 100_000_000
"""Bytes, as the format has it."""
MAX_TENSORS = 2**20
MAX_DIMENSIONS = 8
SIZES = {
    "F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U64": 8, "U32": 4, "U16": 2,
    "U8": 1, "BOOL": 1, "F8_E4M3": 1, "F8_E5M2": 1,
    "F8_E8M0": 1,
}  # fmt: skip
"""Bytes of a number, by the format's names."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A tensor of the table."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    """Bytes from the file's beginning."""
    size: int
    """Bytes."""


def read_table(descriptor: int, size: int, label: str) -> dict[str, Entry]:
    """Read the table of an open file of `size` bytes; `label` names it in messages.

    Raises:
        ModelFileError: damaged, truncated or lying.
    """

    def fail(message: str) -> NoReturn:
        raise ModelFileError(f"{label}: {message}")

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            twice, _ = Counter(key for key, _ in pairs).most_common(1)[0]
            fail(f"{twice!r:.80} stands in the header twice")
        return found

    length = int.from_bytes(_read(descriptor, 8, 0), "little") if size >= 8 else -1
    if not 2 <= length <= min(MAX_HEADER, size - 8):
        fail(f"not a safetensors file: it says its header has {length} bytes, and has {size} bytes in all")
    try:
        table = json.loads(_read(descriptor, length, 8), object_pairs_hook=unique)
    except (ValueError, RecursionError) as error:
        fail(f"its header is no JSON: {error!s:.80}")
    if not isinstance(table, dict) or len(table) > MAX_TENSORS:
        fail("its header is no object of tensors")
    table.pop("__metadata__", None)
    entries = {}
    for name, value in table.items():
        found = _entry(name, value, 8 + length)
        if isinstance(found, str):
            fail(f"tensor {name!r:.200} {found}")
        if found.offset + found.size > size:
            fail(
                f"tensor {name!r:.200} ends at byte {found.offset + found.size}, but the file ends at byte {size}: "
                "it is truncated or damaged; fetch it again"
            )
        entries[name] = found
    for first, second in pairwise(sorted(entries.values(), key=lambda entry: (entry.offset, entry.size))):
        if first.offset + first.size > second.offset:
            fail(f"tensors {first.name!r:.200} and {second.name!r:.200} overlap")
    return entries


def _read(descriptor: int, count: int, at: int) -> bytes:
    parts, have = [], 0
    while have < count and (part := os.pread(descriptor, count - have, at + have)):
        parts.append(part)
        have += len(part)
    return b"".join(parts)


def _entry(name: str, value: object, start: int) -> Entry | str:
    """A tensor, or what is wrong with it."""
    if not isinstance(value, dict):
        return f"is {value!r:.60}, not an object"
    dtype, shape, offsets = (value.get(key) for key in ("dtype", "shape", "data_offsets"))
    if not isinstance(dtype, str) or dtype not in SIZES:
        return f"has dtype {dtype!r:.60}; known are {', '.join(SIZES)}"
    if not _counts(shape) or len(shape) > MAX_DIMENSIONS:
        return f"has shape {shape!r:.60}, which is none"
    if not _counts(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        return f"has offsets {offsets!r:.60}, which are none"
    size = math.prod(shape) * SIZES[dtype]
    if offsets[1] - offsets[0] != size:
        return f"of shape {shape!r:.60} in {dtype} takes {size} bytes, and its offsets say {offsets[1] - offsets[0]}"
    return Entry(name, dtype, tuple(shape), start + offsets[0], size)


def _counts(value: Any) -> TypeGuard[list[int]]:
    return isinstance(value, list) and all(type(each) is int and 0 <= each < 2**63 for each in value)
