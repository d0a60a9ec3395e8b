"""A GGUF file's metadata as a plain mapping: all that the tests of this room need of a model file."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import BinaryIO

SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
STRING, ARRAY = 8, 9


def read_metadata(path: Path) -> dict[str, object]:
    with path.open("rb") as file:
        magic, _, _, count = struct.unpack("<4sIQQ", file.read(24))
        assert magic == b"GGUF"
        return {_text(file): _value(file, _scalar(file, "I")) for _ in range(count)}


def _scalar(file: BinaryIO, form: str) -> int:
    return struct.unpack(f"<{form}", file.read(struct.calcsize(f"<{form}")))[0]


def _text(file: BinaryIO) -> str:
    return file.read(_scalar(file, "Q")).decode()


def _value(file: BinaryIO, kind: int) -> object:
    if kind == STRING:
        return _text(file)
    if kind != ARRAY:
        return _scalar(file, SCALARS[kind])
    kind, count = _scalar(file, "I"), _scalar(file, "Q")
    if kind in (STRING, ARRAY):
        return [_value(file, kind) for _ in range(count)]
    form = f"<{count}{SCALARS[kind]}"
    return list(struct.unpack(form, file.read(struct.calcsize(form))))
