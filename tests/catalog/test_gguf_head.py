"""Heads that Pagoda writes, read by the `gguf` package and by Pagoda."""

from __future__ import annotations

from pathlib import Path

import pytest
from gguf import GGUFReader, GGUFValueType

from pagoda.catalog import ModelFile
from pagoda.catalog.gguf_head import HeadTensor, encode, head, padding

VALUES = {
    "general.architecture": ("llama", GGUFValueType.STRING),
    "general.alignment": (64, GGUFValueType.UINT32),
    "count": (7, GGUFValueType.UINT32),
    "below": (-7, GGUFValueType.INT32),
    "large": (2**40, GGUFValueType.INT64),
    "real": (0.5, GGUFValueType.FLOAT32),
    "yes": (True, GGUFValueType.BOOL),
    "ints": ([1, 2, -3], GGUFValueType.INT32),
    "reals": ([0.25, -1.0], GGUFValueType.FLOAT32),
    "flags": ([True, False, True], GGUFValueType.BOOL),
    "texts": (["a", "ü", ""], GGUFValueType.STRING),
    "none": ([], GGUFValueType.STRING),
}


def test_every_type_comes_back(tmp_path: Path) -> None:
    path = tmp_path / "head.gguf"
    tensors = [HeadTensor("a", (3, 2), "f32", 0), HeadTensor("b", (5,), "f32", 64)]
    metadata = {key: encode(value) for key, (value, _) in VALUES.items()} | {"raw": encode(bytes([0, 200]))}
    path.write_bytes(head(metadata, tensors, 64) + bytes(64 + 20 + padding(20, 64)))
    reader = GGUFReader(path)
    for key, (value, kind) in {**VALUES, "raw": ([0, 200], GGUFValueType.UINT8)}.items():
        field = reader.get_field(key)
        assert field is not None
        if value != []:
            assert field.types[-1] == kind
            assert field.contents() == value
    with ModelFile(path) as file:
        assert {k: v for k, v in file.metadata.items() if k != "raw"} == {k: v for k, (v, _) in VALUES.items()}
        assert [(t.name, t.shape) for t in file.tensors.values()] == [("a", (3, 2)), ("b", (5,))]
        assert all(t.offset % 64 == 0 for t in file.tensors.values())


@pytest.mark.parametrize("value", [None, {}, [1, "a"], ["a", 1], [-1, 2**40], [0.5, 1e40], [[1]], 2**70])
def test_what_has_no_type_is_refused(value: object) -> None:
    with pytest.raises(ValueError, match=r"has no type|does not fit"):
        encode(value)
