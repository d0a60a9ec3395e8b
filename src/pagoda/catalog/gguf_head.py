"""Writing the head of a GGUF file: metadata, and the table of tensors. The inverse of `gguf`.

Knows the layout of version 3, little-endian (the specification is ggml's docs/gguf.md), and which of its types a plain
Python value gets. Does not write tensors.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pagoda import quant
from pagoda.catalog.gguf import MAGIC

VERSION = 3
_U8, _U32, _I32, _F32, _BOOL, _STRING, _ARRAY, _I64 = 0, 4, 5, 6, 7, 8, 9, 11


@dataclass(frozen=True, slots=True)
class HeadTensor:
    """A line of the table."""

    name: str
    shape: tuple[int, ...]
    """Outermost first."""
    format: str
    offset: int
    """Bytes from the beginning of the tensors' data; a multiple of the alignment."""


def padding(size: int, alignment: int) -> int:
    """How many bytes are missing to a multiple of the alignment."""
    return -size % alignment


def encode(value: object) -> bytes:
    """Type and value. Whole numbers become u32, or i32 if negative or in a list; others f32; bytes a list of u8.

    Raises:
        ValueError: a value that GGUF has no type for, or none that fits.
    """
    if isinstance(value, list | tuple):
        kind = _kind(value[0]) if value else _STRING
        if kind in (_U32, _I32) and all(isinstance(each, int) and -(2**31) <= each < 2**31 for each in value):
            kind = _I32
        if kind == _STRING and not all(isinstance(each, str) for each in value):
            raise ValueError(f"{value!r:.60} does not fit one type")
        head = struct.pack("<IIQ", _ARRAY, kind, len(value))
        return head + b"".join(_payload(kind, each) for each in value)
    if isinstance(value, bytes):
        return struct.pack("<IIQ", _ARRAY, _U8, len(value)) + value
    kind = _kind(value)
    return struct.pack("<I", kind) + _payload(kind, value)


def _kind(value: object) -> int:
    if isinstance(value, bool):
        return _BOOL
    if isinstance(value, int):
        return _U32 if 0 <= value < 2**32 else _I32 if -(2**31) <= value < 0 else _I64
    if isinstance(value, float):
        return _F32
    if isinstance(value, str):
        return _STRING
    raise ValueError(f"GGUF has no type for {value!r:.60}")


_LETTERS = {_U32: "<I", _I32: "<i", _F32: "<f", _BOOL: "<?", _I64: "<q"}


def _payload(kind: int, value: object) -> bytes:
    if kind == _STRING:
        return _text(str(value))
    try:
        return struct.pack(_LETTERS[kind], value)
    except (struct.error, OverflowError) as error:
        raise ValueError(f"{value!r:.60} does not fit the type of its neighbours: {error}") from error


def _text(text: str) -> bytes:
    raw = text.encode()
    return struct.pack("<Q", len(raw)) + raw


def head(metadata: Mapping[str, bytes], tensors: Sequence[HeadTensor], alignment: int) -> bytes:
    """All before the tensors' data, padded to the alignment.

    Args:
        metadata: key -> type and value, as `encode` gives them.
        tensors: in the order of their offsets.
        alignment: bytes; what metadata says, or 32.
    """
    parts = [MAGIC, struct.pack("<IQQ", VERSION, len(tensors), len(metadata))]
    parts += [_text(key) + value for key, value in metadata.items()]
    for tensor in tensors:
        shape = struct.pack(f"<I{len(tensor.shape)}Q", len(tensor.shape), *reversed(tensor.shape))
        parts.append(_text(tensor.name) + shape + struct.pack("<IQ", quant.type_id(tensor.format), tensor.offset))
    whole = b"".join(parts)
    return whole + bytes(padding(len(whole), alignment))
