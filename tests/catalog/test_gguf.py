"""Reading GGUF: right files against the independent `gguf` package, and every kind of damage with its own message."""

from __future__ import annotations

import os
import re
import struct
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from gguf import GGUFReader

import gguf_writer as gw
from gguf_writer import As, File, Tensor
from pagoda.catalog import ModelFile, open_model
from pagoda.errors import ModelError, ModelFileError, UnsupportedModel
from tiny import TinyShape, tiny_file, tiny_model

ARCH = {"general.architecture": "llama"}


def q8(name: str, shape: tuple[int, ...] = (2, 32), **override: int) -> Tensor:
    size = int(np.prod(shape)) // 32 * 34
    return Tensor(name, shape, "q8_0", bytes(i % 251 for i in range(size)), **override)


def save(directory: Path, content: bytes | File) -> Path:
    path = directory / "model.gguf"
    path.write_bytes(content if isinstance(content, bytes) else content.bytes())
    return path


def refuse(directory: Path, content: bytes | File, error: type[ModelError], *words: str) -> str:
    """Opening fails with this error, whose message has all these words in order and names the file."""
    path = save(directory, content)
    with pytest.raises(error, match=".*".join(re.escape(word) for word in words)) as caught:
        ModelFile(path)
    assert str(path) in str(caught.value)
    return str(caught.value)


# --- sound files


def test_metadata_and_tensors_equal_the_gguf_package(tmp_path: Path) -> None:
    path = tiny_model(tmp_path, layers=1, vocabulary=300, formats={"attn_q.weight": "f16", "attn_k.weight": "bf16"})
    reader = GGUFReader(path)
    with ModelFile(path) as file:
        theirs = {key: field.contents() for key, field in reader.fields.items() if not key.startswith("GGUF.")}
        assert dict(file.metadata) == theirs
        assert list(file.tensors) == [tensor.name for tensor in reader.tensors]
        for tensor in reader.tensors:
            ours = file.tensor(tensor.name)
            assert ours.shape == tuple(reversed(tensor.shape.tolist()))
            assert ours.format.name == tensor.tensor_type.name.lower()
            assert ours.raw.tobytes() == tensor.data.tobytes()
            assert not ours.raw.flags.writeable


def test_every_value_type(tmp_path: Path) -> None:
    values = {
        "u8": As(gw.U8, 255),
        "i8": As(gw.I8, -128),
        "u16": As(gw.U16, 65535),
        "i16": As(gw.I16, -32768),
        "u32": As(gw.U32, 2**32 - 1),
        "i32": As(gw.I32, -(2**31)),
        "f32": As(gw.F32, 0.1),
        "bool": As(gw.BOOL, True),
        "string": As(gw.STRING, "héllo \0 世界"),
        "u64": As(gw.U64, 2**64 - 1),
        "i64": As(gw.I64, -(2**63)),
        "f64": As(gw.F64, 0.1),
        "bools": As(gw.ARRAY, [True, False], gw.BOOL),
        "bytes": As(gw.ARRAY, [1, 2], gw.U8),
        "doubles": As(gw.ARRAY, [0.1, -0.0], gw.F64),
        "none": As(gw.ARRAY, [], gw.STRING),
        "nested": As(gw.ARRAY, [As(gw.ARRAY, ["a", "b"], gw.STRING), As(gw.ARRAY, [7], gw.I16)], gw.ARRAY),
        "": "an empty key",
    }
    with ModelFile(save(tmp_path, File(ARCH | values))) as file:
        found = {key: file.metadata[key] for key in values}
    expected = {key: value.value if isinstance(value, As) else value for key, value in values.items()}
    assert found == expected | {"f32": float(np.float32(0.1)), "nested": [["a", "b"], [7]]}
    assert found["bool"] is True
    assert found["bools"] == [True, False]


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("alignment", [1, 8, 32, 4096])
def test_versions_and_alignments(tmp_path: Path, version: int, alignment: int) -> None:
    tensors = [q8("a"), q8("b", (3, 64)), gw.stored("c", np.arange(5, dtype=np.float32), "f32")]
    meta = ARCH | {"general.alignment": alignment}
    with ModelFile(save(tmp_path, File(meta, tensors, version=version, alignment=alignment))) as file:
        for tensor in tensors:
            assert file.tensor(tensor.name).raw.tobytes() == tensor.raw
        assert file.tensor("c").floats().tolist() == [0, 1, 2, 3, 4]


def test_tensors_may_lie_in_any_order_with_gaps(tmp_path: Path) -> None:
    # the writer lays data out in table order; offsets that say otherwise swap the two
    tensors = [q8("late", offset=96), q8("early", offset=0)]
    with ModelFile(save(tmp_path, File(ARCH, tensors))) as file:
        assert file.tensors["early"].offset + 96 == file.tensors["late"].offset
        assert file.tensor("early").raw.tobytes() == tensors[0].raw


def test_a_file_without_tensors(tmp_path: Path) -> None:
    with ModelFile(save(tmp_path, File(ARCH))) as file:
        assert dict(file.tensors) == {}


def test_a_header_larger_than_the_reading_window(tmp_path: Path) -> None:
    """Strings and numbers that straddle the window's end are read right, wherever it falls."""
    words = [f"{i:x}" * (i % 40) for i in range(120_000)]
    numbers = list(range(600_000))
    meta = ARCH | {"words": words, "numbers": As(gw.ARRAY, numbers, gw.U32), "end": "there"}
    with ModelFile(save(tmp_path, File(meta, [q8("a")]))) as file:
        assert file.metadata["words"] == words
        assert file.metadata["numbers"] == numbers
        assert file.metadata["end"] == "there"
        assert file.tensor("a").raw.tobytes() == q8("a").raw


def test_many_threads_read_at_once(tmp_path: Path) -> None:
    path = tiny_model(tmp_path)
    with ModelFile(path) as file, ThreadPoolExecutor(8) as threads:
        alone = {name: file.tensor(name).raw.tobytes() for name in file.tensors}
        names = list(file.tensors) * 10
        for name, tensor in zip(names, threads.map(file.tensor, names), strict=True):
            assert tensor.raw.tobytes() == alone[name]


def test_tensors_outlive_the_file(tmp_path: Path) -> None:
    file = ModelFile(save(tmp_path, File(ARCH, [q8("a")])))
    tensor = file.tensor("a")
    file.close()
    file.close()
    assert tensor.raw.tobytes() == q8("a").raw
    with pytest.raises(ModelFileError, match="'a' cannot be read: Bad file descriptor"):
        file.tensor("a")


@pytest.mark.model
def test_the_default_model(smollm2_path: Path) -> None:
    with open_model(smollm2_path) as file:
        assert file.architecture == "llama"
        assert file.digest() == "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
        assert len(file.tensors) == 272
        assert len(file.metadata["tokenizer.ggml.tokens"]) == 49152  # type: ignore[arg-type]
        norm = file.tensor("output_norm.weight")
        assert norm.shape == (576,)
        assert np.isfinite(norm.floats()).all()


# --- damaged files


def test_a_file_truncated_at_any_byte(tmp_path: Path) -> None:
    whole = File(ARCH | {"n": 3, "list": ["ab", "c"], "x": 0.5}, [q8("a"), q8("b")]).bytes()
    data_end = len(whole) - (gw.padded(68, 32) - 68)  # the last tensor's padding may be missing
    path = tmp_path / "model.gguf"
    path.write_bytes(whole[:data_end])
    ModelFile(path).close()
    for length in range(data_end):
        path.write_bytes(whole[:length])
        with pytest.raises(ModelFileError, match=r"truncated|damaged"):
            ModelFile(path)


def test_a_truncated_tensor_is_named(tmp_path: Path) -> None:
    whole = File(ARCH, [q8("a"), q8("b")]).bytes()
    refuse(tmp_path, whole[:-40], ModelFileError, "tensor 'b' of shape (2, 32) in q8_0 ends at byte", "truncated")


def test_a_file_cut_short_after_opening(tmp_path: Path) -> None:
    path = save(tmp_path, File(ARCH, [q8("a"), q8("b")]))
    with ModelFile(path) as file:
        os.truncate(path, file.tensors["b"].offset + 3)
        file.tensor("a")
        with pytest.raises(ModelFileError, match=r"within tensor 'b'.*cut short after it was opened"):
            file.tensor("b")


@pytest.mark.parametrize(
    ("magic", "words"),
    [
        (b"\0\0\0\0", "begins with b'\\x00\\x00\\x00\\x00'"),
        (b"vers", "Git LFS pointer"),
        (b"PK\x03\x04", "zip archive"),
        (b"<!DO", "web page"),
        (b"ggml", "predecessor"),
    ],
)
def test_wrong_magic(tmp_path: Path, magic: bytes, words: str) -> None:
    refuse(tmp_path, File(ARCH, magic=magic), ModelFileError, "not a GGUF file", words)


@pytest.mark.parametrize("version", [0, 1, 4, 2**32 - 1])
def test_other_versions(tmp_path: Path, version: int) -> None:
    refuse(tmp_path, File(ARCH, version=version), UnsupportedModel, f"GGUF version {version}; Pagoda reads 2 and 3")


def test_big_endian(tmp_path: Path) -> None:
    refuse(tmp_path, b"GGUF" + struct.pack(">IQQ", 3, 0, 0), UnsupportedModel, "big-endian")


@pytest.mark.parametrize("count", [100, 2**32, 2**63, 2**64 - 1])
def test_absurd_counts(tmp_path: Path, count: int) -> None:
    refuse(tmp_path, File(ARCH, counts=(0, count)), ModelFileError, f"{count} metadata keys need at least")
    refuse(tmp_path, File(ARCH, counts=(count, 1)), ModelFileError, f"{count} tensors need at least")


@pytest.mark.parametrize("element", [gw.U8, gw.F64, gw.STRING, gw.ARRAY, gw.BOOL])
@pytest.mark.parametrize("count", [1000, 2**40, 2**64 - 1])
def test_absurd_array_lengths(tmp_path: Path, element: int, count: int) -> None:
    raw = File(ARCH | {"list": As(gw.ARRAY, [], element)}).head()
    raw = raw[:-8] + struct.pack("<Q", count)
    refuse(tmp_path, raw, ModelFileError, f"the {count} elements of metadata 'list' need at least")


@pytest.mark.parametrize("length", [1000, 2**40, 2**64 - 1])
def test_absurd_string_lengths(tmp_path: Path, length: int) -> None:
    raw = File(ARCH | {"word": ""}).head()
    refuse(tmp_path, raw[:-8] + struct.pack("<Q", length), ModelFileError, "metadata 'word'", str(length))
    raw = File(ARCH | {"words": ["ab", ""]}).head()
    refuse(tmp_path, raw[:-8] + struct.pack("<Q", length), ModelFileError, "metadata 'words' needs", str(length))
    raw = File(counts=(0, 2)).head() + struct.pack("<Q", length) + bytes(30)
    refuse(tmp_path, raw, ModelFileError, "metadata key 1 of 2", str(length))


def test_more_elements_than_any_model_has(tmp_path: Path) -> None:
    raw = File(ARCH | {"list": As(gw.ARRAY, [], gw.U8)}).head()[:-8] + struct.pack("<Q", 2**24 + 1)
    path = save(tmp_path, raw)
    os.truncate(path, len(raw) + 2**24 + 1)  # sparse: the claim is true, and still refused
    with pytest.raises(ModelFileError, match="metadata 'list' brings the header to 16777217 elements"):
        ModelFile(path)


def test_a_header_larger_than_any_model_has(tmp_path: Path) -> None:
    raw = File(ARCH | {"word": ""}).head()[:-8] + struct.pack("<Q", 2**28 - 8)
    path = save(tmp_path, raw)
    os.truncate(path, len(raw) + 2**28)
    with pytest.raises(ModelFileError, match="metadata 'word' reaches byte"):
        ModelFile(path)


def test_arrays_nested_too_deep(tmp_path: Path) -> None:
    def nested(depth: int) -> As:
        inner = As(gw.ARRAY, [1], gw.U8)
        for _ in range(depth - 1):
            inner = As(gw.ARRAY, [inner], gw.ARRAY)
        return inner

    with ModelFile(save(tmp_path, File(ARCH | {"deep": nested(4)}))) as file:
        assert file.metadata["deep"] == [[[[1]]]]
    refuse(tmp_path, File(ARCH | {"deep": nested(5)}), ModelFileError, "metadata 'deep'", "more than 4 deep")


def test_unknown_value_types(tmp_path: Path) -> None:
    raw = File(ARCH | {"odd": As(gw.U8, 1)}).head()
    refuse(tmp_path, raw[:-5] + struct.pack("<IB", 13, 1), ModelFileError, "metadata 'odd' has value type 13")
    refuse(
        tmp_path,
        File(ARCH | {"odd": As(gw.ARRAY, [], 99)}),
        ModelFileError,
        "metadata 'odd' has elements of type 99",
    )


def test_a_truth_value_that_is_neither(tmp_path: Path) -> None:
    raw = File(ARCH | {"flag": True}).head()
    refuse(tmp_path, raw[:-1] + b"\2", ModelFileError, "metadata 'flag' has the truth value 2")
    raw = File(ARCH | {"flags": [True, False]}).head()
    refuse(tmp_path, raw[:-1] + b"\7", ModelFileError, "metadata 'flags' has the truth value 7")


@pytest.mark.parametrize(("kind", "name"), [(16, "iq2_xxs"), (26, "i32"), (4, "unknown"), (12345, "unknown")])
def test_unknown_tensor_types(tmp_path: Path, kind: int, name: str) -> None:
    refuse(tmp_path, File(ARCH, [q8("w", kind=kind)]), UnsupportedModel, f"tensor 'w': weight format {name}", str(kind))


def test_tensors_past_the_end(tmp_path: Path) -> None:
    refuse(tmp_path, File(ARCH, [q8("w", offset=32)]), ModelFileError, "tensor 'w'", "ends at byte")
    refuse(tmp_path, File(ARCH, [q8("w", offset=2**64 - 32)]), ModelFileError, "tensor 'w'", "ends at byte")
    long = Tensor("w", (1 << 40, 32), "q8_0", bytes(68))
    refuse(tmp_path, File(ARCH, [long]), ModelFileError, "tensor 'w' of shape (1099511627776, 32)", "ends at byte")


def test_misaligned_tensors(tmp_path: Path) -> None:
    refuse(tmp_path, File(ARCH, [q8("w", offset=8)]), ModelFileError, "tensor 'w' begins at offset 8", "alignment, 32")


def test_overlapping_tensors(tmp_path: Path) -> None:
    tensors = [q8("a"), q8("b", offset=64)]
    refuse(tmp_path, File(ARCH, tensors), ModelFileError, "tensors 'a' and 'b' overlap")
    refuse(tmp_path, File(ARCH, [q8("a"), q8("b", offset=0)]), ModelFileError, "'a' and 'b' overlap")


def test_rows_that_are_no_whole_blocks(tmp_path: Path) -> None:
    odd = Tensor("w", (4, 33), "q8_0", bytes(136))
    refuse(tmp_path, File(ARCH, [odd]), ModelFileError, "tensor 'w' has rows of 33 numbers", "block of q8_0, 32")
    # 8 x 16 numbers are 4 blocks all told, and still no row of them is whole
    refuse(tmp_path, File(ARCH, [Tensor("w", (8, 16), "q8_0", bytes(136))]), ModelFileError, "rows of 16 numbers")


def test_duplicate_names(tmp_path: Path) -> None:
    refuse(tmp_path, File(ARCH, [q8("w"), q8("w")]), ModelFileError, "tensor 'w' stands in the table twice")
    raw = File(ARCH | {"general.name": "x"}).bytes().replace(b"general.name", b"general.arch")
    raw = raw.replace(gw.text("general.architecture"), gw.text("general.arch"))
    refuse(tmp_path, raw, ModelFileError, "metadata key 'general.arch' stands there twice")


def test_strings_that_are_not_utf8(tmp_path: Path) -> None:
    refuse(tmp_path, File(ARCH | {"word": As(gw.STRING, b"\xff")}), ModelFileError, "metadata 'word'", "not UTF-8")
    words = As(gw.ARRAY, ["fine", b"\xed\xa0\x80"], gw.STRING)  # an encoded lone surrogate
    refuse(tmp_path, File(ARCH | {"words": words}), ModelFileError, "metadata 'words'", "not UTF-8")
    raw = File(ARCH | {"key": 1}).bytes().replace(b"key", b"k\xc3y")
    refuse(tmp_path, raw, ModelFileError, "metadata key 2 of 2", "not UTF-8")
    raw = File(ARCH, [q8("name")]).bytes().replace(b"name", b"n\x80me")
    refuse(tmp_path, raw, ModelFileError, "tensor 1 of 1", "not UTF-8")


@pytest.mark.parametrize("shape", [(0, 32), (2, 0), (0,)])
def test_zero_dimensions(tmp_path: Path, shape: tuple[int, ...]) -> None:
    refuse(
        tmp_path, File(ARCH, [Tensor("w", shape, "f32", b"")]), ModelFileError, "tensor 'w'", "no dimension may be 0"
    )


@pytest.mark.parametrize("shape", [(), (1, 1, 1, 1, 32)])
def test_number_of_dimensions(tmp_path: Path, shape: tuple[int, ...]) -> None:
    words = f"tensor 'w' has {len(shape)} dimensions"
    refuse(tmp_path, File(ARCH, [Tensor("w", shape, "f32", bytes(128))]), ModelFileError, words)


@pytest.mark.parametrize("shape", [(2**63, 32), (2**32, 2**32), (2**33, 2**33, 2**62, 32), (2**59, 32)])
def test_products_that_overflow(tmp_path: Path, shape: tuple[int, ...]) -> None:
    # in 64 bits some of these products wrap to 0, which would pass for a small tensor
    refuse(
        tmp_path, File(ARCH, [Tensor("w", shape, "q8_0", bytes(64))]), ModelFileError, "tensor 'w' has shape", "63 bits"
    )


@pytest.mark.parametrize("value", [0, 3, 48, -32, "32", 1.0, True, 2**40])
def test_alignments_that_are_none(tmp_path: Path, value: object) -> None:
    refuse(tmp_path, File(ARCH | {"general.alignment": value}), ModelFileError, "'general.alignment'", "power of two")


def test_no_architecture(tmp_path: Path) -> None:
    refuse(tmp_path, File({"x": 1}), ModelFileError, "'general.architecture' is missing")
    refuse(tmp_path, File({"general.architecture": 5}), ModelFileError, "'general.architecture' is 5")
    refuse(tmp_path, File({"general.architecture": ""}), ModelFileError, "'general.architecture' is ''")


def test_a_part_of_a_model(tmp_path: Path) -> None:
    refuse(
        tmp_path,
        File(ARCH | {"split.count": As(gw.U16, 3)}),
        ModelFileError,
        "this one should be named NAME-00001-of-00003.gguf",
    )


def test_files_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match="No such file"):
        ModelFile(tmp_path / "absent.gguf")
    with pytest.raises(ModelFileError, match="not a file"):
        ModelFile(tmp_path)
    fifo = tmp_path / "pipe"
    os.mkfifo(fifo)
    with pytest.raises(ModelFileError, match="not a file"):
        ModelFile(fifo)


def test_a_missing_tensor(tmp_path: Path) -> None:
    with (
        ModelFile(tiny_model(tmp_path)) as file,
        pytest.raises(ModelFileError, match=r"has no tensor 'blk\.7\.attn_q\.weight' among its 20"),
    ):
        file.tensor("blk.7.attn_q.weight")


def test_an_error_leaves_no_open_file(tmp_path: Path) -> None:
    path = save(tmp_path, tiny_file(TinyShape(layers=1)).bytes()[:1000])
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(10):
        with pytest.raises(ModelFileError):
            ModelFile(path)
    assert len(os.listdir("/proc/self/fd")) == before
