"""Models in several GGUF files, as `gguf-split` makes them: found by name, read as one, and every lie named."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import gguf_writer as gw
from gguf_writer import As, File
from pagoda.catalog import ModelFile
from pagoda.errors import ModelFileError
from tiny import TinyShape, tiny_file


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PAGODA_CACHE", str(tmp_path / "cache"))


def split(directory: Path, parts: int, changes: dict[int, dict[str, Any]] | None = None) -> list[Path]:
    """Write a tiny model in so many parts; `changes` are metadata of some parts that differ from what is right."""
    whole = tiny_file(TinyShape())
    each = -(-len(whole.tensors) // parts)
    paths = []
    for i in range(parts):
        keys = {"split.no": As(gw.U16, i), "split.count": As(gw.U16, parts), "split.tensors.count": len(whole.tensors)}
        metadata = {**(whole.metadata if i == 0 else {}), **keys, **(changes or {}).get(i, {})}
        file = File(metadata, whole.tensors[i * each : (i + 1) * each])
        paths.append(directory / f"tiny-{i + 1:05}-of-{parts:05}.gguf")
        paths[-1].write_bytes(file.bytes())
    return paths


def test_parts_read_as_the_whole(tmp_path: Path) -> None:
    path = tmp_path / "whole.gguf"
    path.write_bytes(tiny_file(TinyShape()).bytes())
    parts = split(tmp_path, 3)
    with ModelFile(path) as whole:
        want = {t.name: t.raw.tobytes() for batch in whole.batches(whole.tensors) for t in batch}
        for part in parts:  # whichever is named
            with ModelFile(part) as joined:
                assert dict(joined.tensors.items()).keys() == dict(whole.tensors.items()).keys()
                assert joined.metadata["tokenizer.ggml.tokens"] == whole.metadata["tokenizer.ggml.tokens"]
                got = {t.name: t.raw.tobytes() for batch in joined.batches(joined.tensors) for t in batch}
                assert got == want
                assert joined.tensor("output_norm.weight").raw.tobytes() == want["output_norm.weight"]


def test_the_digest_is_of_all_parts(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    first, second = split(tmp_path / "a", 2), split(tmp_path / "b", 2, {1: {"extra": 1}})
    digests = []
    for path in (first[0], first[1], second[0]):
        with ModelFile(path) as file:
            digests.append(file.digest())
    assert digests[0] == digests[1] != digests[2]


@pytest.mark.parametrize(
    ("match", "changes"),
    [
        (r"00002-of-00003.gguf: says it is part 2 of 3, its name says 1 of 3", {1: {"split.no": As(gw.U16, 2)}}),
        (r"00003-of-00003.gguf: says it is part 2 of 4", {2: {"split.count": As(gw.U16, 4)}}),
        (r"parts hold 20 tensors, and should hold 21", {0: {"split.tensors.count": 21}}),
    ],
)
def test_parts_that_lie(tmp_path: Path, match: str, changes: dict[int, dict[str, Any]]) -> None:
    with pytest.raises(ModelFileError, match=match):
        ModelFile(split(tmp_path, 3, changes)[0])


def test_a_missing_part_is_named(tmp_path: Path) -> None:
    parts = split(tmp_path, 3)
    parts[1].unlink()
    with pytest.raises(ModelFileError, match=r"tiny-00002-of-00003.gguf: cannot be read: No such file"):
        ModelFile(parts[0])


def test_a_tensor_in_two_parts(tmp_path: Path) -> None:
    first, second = split(tmp_path, 2)
    whole = tiny_file(TinyShape())
    keys = {"split.no": As(gw.U16, 1), "split.count": As(gw.U16, 2)}
    second.write_bytes(replace(whole, metadata=keys).bytes())
    with pytest.raises(ModelFileError, match=r"tensor 'blk.0.attn_k.weight' is in another part too"):
        ModelFile(first)
