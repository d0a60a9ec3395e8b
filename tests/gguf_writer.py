"""A small GGUF writer for tests: bytes that are right, and, by its parts, bytes that are wrong on purpose."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from pagoda import quant

U8, I8, U16, I16, U32, I32, F32, BOOL, STRING, ARRAY, U64, I64, F64 = range(13)
_LETTERS = {U8: "B", I8: "b", U16: "H", I16: "h", U32: "I", I32: "i", F32: "f", BOOL: "B", U64: "Q", I64: "q", F64: "d"}


@dataclass(frozen=True)
class As:
    """A metadata value of a given type; `element` is an array's."""

    kind: int
    value: object
    element: int | None = None


@dataclass(frozen=True)
class Tensor:
    """A tensor to write. `kind` and `offset` override what would be right."""

    name: str
    shape: tuple[int, ...]
    """Outermost first."""
    format: str
    raw: bytes
    kind: int | None = None
    offset: int | None = None


@dataclass
class File:
    """A GGUF file; `counts` overrides (tensors, keys)."""

    metadata: Mapping[str, object] = field(default_factory=dict)
    tensors: Sequence[Tensor] = ()
    version: int = 3
    magic: bytes = b"GGUF"
    alignment: int = 32
    counts: tuple[int, int] | None = None

    def head(self) -> bytes:
        """All before the tensors' data, unpadded."""
        tensors, keys = self.counts or (len(self.tensors), len(self.metadata))
        parts = [self.magic, struct.pack("<IQQ", self.version, tensors, keys)]
        parts += [text(key) + typed(value) for key, value in self.metadata.items()]
        offset = 0
        for tensor in self.tensors:
            kind = quant.type_id(tensor.format) if tensor.kind is None else tensor.kind
            at = offset if tensor.offset is None else tensor.offset
            dims = struct.pack(f"<I{len(tensor.shape)}Q", len(tensor.shape), *reversed(tensor.shape))
            parts.append(text(tensor.name) + dims + struct.pack("<IQ", kind, at))
            offset += padded(len(tensor.raw), self.alignment)
        return b"".join(parts)

    def bytes(self) -> bytes:
        """The whole file."""
        parts = [self.head(), *(tensor.raw for tensor in self.tensors)]
        return b"".join(part.ljust(padded(len(part), self.alignment), b"\0") for part in parts)


def padded(size: int, alignment: int) -> int:
    return -(-size // alignment) * alignment


def text(value: str | bytes) -> bytes:
    raw = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(raw)) + raw


def typed(value: object) -> bytes:
    """Type and value; plain Python values get the type that model files commonly use."""
    as_ = value if isinstance(value, As) else _common(value)
    return struct.pack("<I", as_.kind) + payload(as_)


def payload(as_: As) -> bytes:
    if as_.kind == STRING:
        assert isinstance(as_.value, str | bytes)
        return text(as_.value)
    if as_.kind != ARRAY:
        return struct.pack("<" + _LETTERS[as_.kind], as_.value)
    assert isinstance(as_.value, Sequence)
    assert as_.element is not None
    head = struct.pack("<IQ", as_.element, len(as_.value))
    if as_.element in _LETTERS:
        return head + struct.pack(f"<{len(as_.value)}{_LETTERS[as_.element]}", *as_.value)
    if as_.element == STRING:
        return head + b"".join(text(item) for item in as_.value)
    return head + b"".join(payload(item if isinstance(item, As) else _common(item)) for item in as_.value)


def _common(value: object) -> As:
    if isinstance(value, bool):
        return As(BOOL, value)
    if isinstance(value, int):
        return As(U32 if 0 <= value < 2**32 else I64, value)
    if isinstance(value, float):
        return As(F32, value)
    if isinstance(value, str):
        return As(STRING, value)
    assert isinstance(value, list), f"no GGUF type for {value!r}"
    first = value[0] if value else ""
    element = _common(first).kind
    return As(ARRAY, value, I32 if element in (U32, I64) else element)


def stored(name: str, floats: np.ndarray, format: str) -> Tensor:
    """A tensor in a weight format."""
    quantizer = quant.quantizer(format)
    raw = quantizer.quantize(np.ascontiguousarray(floats, np.float32).reshape(-1, quantizer.block))
    return Tensor(name, floats.shape, format, raw.tobytes())
