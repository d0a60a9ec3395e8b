"""GGUF headers: metadata to Python values, and the table of tensors.

Knows the layout of versions 2 and 3, little-endian (the specification is ggml's docs/gguf.md). Believes nothing: every
count and length is held against the file's size before anything is allocated for it, and every tensor against its
neighbours. Does not read tensors, and does not know what any metadata key means but `general.alignment`.
"""

from __future__ import annotations

import math
import os
import struct
from dataclasses import dataclass
from itertools import pairwise
from typing import NoReturn

from pagoda import quant
from pagoda.backends.ops import Ints, StoredFormat
from pagoda.errors import ModelFileError, UnsupportedModel

MAGIC = b"GGUF"
VERSIONS = (2, 3)
MAX_HEADER = 256 * 2**20
"""Bytes. Real headers are under 20 MB; what claims more is damaged."""
MAX_ELEMENTS = 2**24
"""Of all arrays of a header together: a list costs some 40 bytes an element, whatever the file spends on it."""
MAX_DEPTH = 4
MAX_KEY = 65535
MAX_DIMENSIONS = 4
_WINDOW = 2 * 2**20

_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 10: "Q", 11: "q", 12: "d"}
_BOOL, _STRING, _ARRAY = 7, 8, 9
_SMALLEST = {_BOOL: 1, _STRING: 8, _ARRAY: 12} | {code: struct.calcsize("<" + c) for code, c in _SCALARS.items()}
_U32, _U64 = struct.Struct("<I"), struct.Struct("<Q")

_NOT_GGUF = {
    b"ggml": "a file of GGUF's predecessor",
    b"lmgg": "a file of GGUF's predecessor",
    b"tjgg": "a file of GGUF's predecessor",
    b"vers": "probably a Git LFS pointer: the file itself was not fetched",
    b"<!DO": "a web page: the download went to the wrong address",
    b"<htm": "a web page: the download went to the wrong address",
    b"PK\x03\x04": "a zip archive",
    b"FUGG": "a GGUF file with its magic reversed",
}


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """Where a tensor lies in its file."""

    name: str
    shape: tuple[int, ...]
    """Outermost first."""
    format: StoredFormat
    offset: int
    """Bytes from the file's beginning."""
    size: int
    """Bytes."""
    shard: int = 0
    """Which of the model's files."""
    order: Ints | None = None
    """As `StoredTensor.order`."""


@dataclass(frozen=True, slots=True)
class Header:
    """What a file says of itself."""

    version: int
    metadata: dict[str, object]
    """int, float, bool, str, or lists of these."""
    tensors: dict[str, TensorInfo]
    """In the file's order."""
    spans: dict[str, tuple[int, int]]
    """Where a metadata key's type and value lie: the first byte, and the first behind them."""


def read_header(descriptor: int, size: int, label: str, shard: int = 0) -> Header:
    """Read the header of an open file of `size` bytes; `label` names it in messages, `shard` goes into its tensors.

    Raises:
        ModelFileError: damaged, truncated or lying.
        UnsupportedModel: another version, byte order or tensor type.
    """
    source = _Source(descriptor, size, label, shard)
    version = _check_magic(source)
    source.what = "the header's counts"
    tensors, keys = source.number(_U64), source.number(_U64)
    source.claim(keys, 8 + 4 + 1, f"{keys} metadata keys")
    metadata: dict[str, object] = {}
    spans: dict[str, tuple[int, int]] = {}
    for i in range(keys):
        source.what = f"metadata key {i + 1} of {keys}"
        key = source.string(MAX_KEY)
        if key in metadata:
            source.fail(f"metadata key {key!r} stands there twice")
        source.what = f"metadata {key!r}"
        begin = source.at
        metadata[key] = _value(source, source.number(_U32))
        spans[key] = (begin, source.at)
    return Header(version, metadata, _tensor_table(source, tensors, _alignment(source, metadata)), spans)


class _Source:
    """The file's beginning, read in growing windows, with a position."""

    def __init__(self, descriptor: int, size: int, label: str, shard: int) -> None:
        self.size = size
        self.shard = shard
        self.at = 0
        self.what = "the magic"
        """What is being read, for messages."""
        self.data = b""
        self.elements = 0
        self._descriptor = descriptor
        self._label = label

    def fail(self, message: str, error: type[ModelFileError] | type[UnsupportedModel] = ModelFileError) -> NoReturn:
        raise error(f"{self._label}: {message}")

    def need(self, count: int) -> None:
        """Have `count` bytes in the window from the position on."""
        end = self.at + count
        if end <= len(self.data):
            return
        if end > self.size:
            self.fail(
                f"{self.what} needs {count} bytes at byte {self.at}, but the file ends at byte {self.size}: "
                "it is truncated or damaged; fetch it again"
            )
        if end > MAX_HEADER:
            self.fail(f"{self.what} reaches byte {end}, but no header has over {MAX_HEADER}: the file is damaged")
        target = min(self.size, max(end, 2 * len(self.data), _WINDOW))
        parts, have = [self.data], len(self.data)
        while have < target:
            part = os.pread(self._descriptor, target - have, have)
            if not part:
                self.fail(f"the file ended at byte {have} while being read, of {self.size} before")
            parts.append(part)
            have += len(part)
        self.data = b"".join(parts)

    def claim(self, count: int, smallest: int, what: str) -> None:
        """Hold a count against the bytes that are left, at `smallest` bytes each."""
        left = self.size - self.at
        if count * smallest > left:
            self.fail(f"{what} need at least {count * smallest} bytes, but the file has {left} left: it is damaged")

    def number(self, kind: struct.Struct) -> int:
        self.need(kind.size)
        number: int = kind.unpack_from(self.data, self.at)[0]
        self.at += kind.size
        return number

    def scalar(self, letter: str) -> int | float:
        return self.scalars(letter, 1)[0]

    def scalars(self, letter: str, count: int) -> list[int | float]:
        layout = f"<{count}{letter}"
        self.need(struct.calcsize(layout))
        numbers = list(struct.unpack_from(layout, self.data, self.at))
        self.at += struct.calcsize(layout)
        return numbers

    def string(self, longest: int = MAX_HEADER) -> str:
        length = self.number(_U64)
        if length > longest:
            self.fail(f"{self.what} has a string of {length} bytes; at most {longest} are allowed: the file is damaged")
        self.need(length)
        self.at += length
        return self._decode(self.at - length, self.at)

    def strings(self, count: int) -> list[str]:
        """Many strings in one sweep: a vocabulary has hundreds of thousands."""
        texts: list[str] = []
        append, unpack = texts.append, _U64.unpack_from
        data, at, safe = self.data, self.at, len(self.data) - 8
        for _ in range(count):
            if at > safe:
                self.at = at
                self.need(8)
                data, safe = self.data, len(self.data) - 8
            start = at + 8
            at = start + unpack(data, at)[0]
            if at - 8 > safe:
                self.at = start
                self.need(at - start)
                data, safe = self.data, len(self.data) - 8
            try:
                append(data[start:at].decode())
            except UnicodeDecodeError:
                append(self._decode(start, at))
        self.at = at
        return texts

    def _decode(self, start: int, end: int) -> str:
        try:
            return self.data[start:end].decode()
        except UnicodeDecodeError as error:
            self.fail(f"{self.what} has a string at byte {start} that is not UTF-8: {error.reason}")


def _check_magic(source: _Source) -> int:
    source.need(len(MAGIC))
    magic = source.data[: len(MAGIC)]
    if magic != MAGIC:
        known = _NOT_GGUF.get(magic)
        guess = f"; it is {known}" if known else ""
        source.fail(f"not a GGUF file: it begins with {magic!r} where {MAGIC!r} is expected{guess}")
    source.at, source.what = len(MAGIC), "the version"
    version = source.number(_U32)
    if version in VERSIONS:
        return version
    if int.from_bytes(version.to_bytes(4, "little"), "big") in (1, *VERSIONS):
        source.fail("a big-endian GGUF file; Pagoda reads little-endian ones: convert it", UnsupportedModel)
    source.fail(f"GGUF version {version}; Pagoda reads {VERSIONS[0]} and {VERSIONS[1]}", UnsupportedModel)


def _value(source: _Source, kind: int) -> object:
    if kind in _SCALARS:
        return source.scalar(_SCALARS[kind])
    if kind == _BOOL:
        return _truth(source, source.scalar("B"))
    if kind == _STRING:
        return source.string()
    if kind == _ARRAY:
        return _array(source, 1)
    source.fail(f"{source.what} has value type {kind}, which GGUF does not define (0 to 12)")


def _truth(source: _Source, byte: int | float) -> bool:
    if byte not in (0, 1):
        source.fail(f"{source.what} has the truth value {byte}, neither 0 nor 1")
    return byte == 1


def _array(source: _Source, depth: int) -> list[object]:
    kind, count = source.number(_U32), source.number(_U64)
    if kind not in _SMALLEST:
        source.fail(f"{source.what} has elements of type {kind}, which GGUF does not define (0 to 12)")
    source.claim(count, _SMALLEST[kind], f"the {count} elements of {source.what}")
    source.elements += count
    if source.elements > MAX_ELEMENTS:
        source.fail(f"{source.what} brings the header to {source.elements} elements; at most {MAX_ELEMENTS} are read")
    if kind == _ARRAY:
        if depth == MAX_DEPTH:
            source.fail(f"{source.what} has arrays in arrays more than {MAX_DEPTH} deep")
        return [_array(source, depth + 1) for _ in range(count)]
    if kind == _STRING:
        return list[object](source.strings(count))
    if kind == _BOOL:
        return [_truth(source, byte) for byte in source.scalars("B", count)]
    return list[object](source.scalars(_SCALARS[kind], count))


def _alignment(source: _Source, metadata: dict[str, object]) -> int:
    alignment = metadata.get("general.alignment", 32)
    if type(alignment) is not int or alignment < 1 or alignment & (alignment - 1) or alignment > MAX_HEADER:
        source.fail(f"metadata 'general.alignment' is {alignment!r:.100}; a power of two is expected")
    return alignment


def _tensor_table(source: _Source, count: int, alignment: int) -> dict[str, TensorInfo]:
    source.claim(count, 8 + 4 + 8 + 4 + 8, f"{count} tensors")
    rows: dict[str, tuple[tuple[int, ...], StoredFormat, int]] = {}
    for i in range(count):
        source.what = f"tensor {i + 1} of {count}"
        name = source.string(MAX_KEY)
        if name in rows:
            source.fail(f"tensor {name!r} stands in the table twice")
        source.what = f"tensor {name!r}"
        rows[name] = (_shape(source), _format(source), source.number(_U64))
    start = -(-source.at // alignment) * alignment
    tensors = {}
    for name, (shape, stored, offset) in rows.items():
        source.what = f"tensor {name!r}"
        size = _size(source, shape, stored)
        if offset % alignment:
            source.fail(f"{source.what} begins at offset {offset}, which is no multiple of the alignment, {alignment}")
        end = start + offset + size
        if end > source.size:
            source.fail(
                f"{source.what} of shape {shape} in {stored.name} ends at byte {end}, but the file ends at byte "
                f"{source.size}: it is truncated or damaged; fetch it again"
            )
        tensors[name] = TensorInfo(name, shape, stored, start + offset, size, source.shard)
    for first, second in pairwise(sorted(tensors.values(), key=lambda tensor: tensor.offset)):
        if first.offset + first.size > second.offset:
            source.fail(
                f"tensors {first.name!r} and {second.name!r} overlap: one ends at byte {first.offset + first.size}, "
                f"the other begins at byte {second.offset}"
            )
    return tensors


def _shape(source: _Source) -> tuple[int, ...]:
    count = source.number(_U32)
    if not 1 <= count <= MAX_DIMENSIONS:
        source.fail(f"{source.what} has {count} dimensions; 1 to {MAX_DIMENSIONS} are expected")
    return tuple(reversed([source.number(_U64) for _ in range(count)]))


def _format(source: _Source) -> StoredFormat:
    try:
        return quant.by_id(source.number(_U32))
    except UnsupportedModel as error:
        source.fail(f"{source.what}: {error}", UnsupportedModel)


def _size(source: _Source, shape: tuple[int, ...], stored: StoredFormat) -> int:
    """Bytes of a tensor, after a look at its dimensions."""
    if 0 in shape:
        source.fail(f"{source.what} has shape {shape}; no dimension may be 0")
    if math.prod(shape) >= 2**63:
        source.fail(f"{source.what} has shape {shape}, whose product does not fit 63 bits: the file is damaged")
    if shape[-1] % stored.block:
        source.fail(
            f"{source.what} has rows of {shape[-1]} numbers, which is no multiple of the block of {stored.name}, "
            f"{stored.block}"
        )
    return math.prod(shape) // stored.block * stored.block_bytes
