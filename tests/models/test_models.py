"""What a model file must hold: each lack and each lie is an error that names the file, the thing and what was found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gguf_writer import File, Tensor
from pagoda.backends.reference import ReferenceBackend
from pagoda.catalog import ModelFile
from pagoda.errors import ModelFileError, UnsupportedModel
from pagoda.models import build, read_config
from pagoda.models.config import Config, Scaling
from pagoda.models.rotary import by_factors, frequencies, linear, llama3, ntk_base, yarn, yarn_magnitude
from tiny import TinyShape, tiny_file

SHAPE = TinyShape(layers=2, width=96, heads=6, kv_heads=2, head_dim=32, ffn=160, vocabulary=300, tied=False)


def read(directory: Path, file: File) -> Config:
    path = directory / "model.gguf"
    path.write_bytes(file.bytes())
    with ModelFile(path) as source:
        return read_config(source)


def with_metadata(**changes: Any) -> File:
    """The file with `llama.` keys changed; None takes one away."""
    file = tiny_file(SHAPE)
    kept = {**file.metadata, **{"llama." + key.replace("__", "."): value for key, value in changes.items()}}
    return replace(file, metadata={key: value for key, value in kept.items() if value is not None})


def with_tensors(change: Callable[[Tensor], Tensor | None]) -> File:
    file = tiny_file(SHAPE)
    return replace(file, tensors=[new for old in file.tensors if (new := change(old)) is not None])


def test_a_sound_file(tmp_path: Path) -> None:
    config = read(tmp_path, tiny_file(SHAPE))
    assert config == Config(
        layers=2, width=96, heads=6, kv_heads=2, head_dim=32, hidden=160, vocabulary=300, eps=pytest.approx(1e-5),
        rope_base=10000.0, rope_dims=32, context=512, tied=False, windows=(None, None),
    )  # fmt: skip
    assert len(config.tensors()) == 3 + 2 * 9


def test_what_has_a_default_may_be_missing(tmp_path: Path) -> None:
    """As the format has it: as many key heads as heads, heads that fill the width, all of a head turned."""
    square = TinyShape(heads=4, kv_heads=4, head_dim=16, width=64)
    file = tiny_file(square)
    gone = ("attention.head_count_kv", "rope.dimension_count", "rope.freq_base", "attention.key_length")
    kept = {key: value for key, value in file.metadata.items() if key.removeprefix("llama.") not in gone}
    assert read(tmp_path, replace(file, metadata=kept)) == read(tmp_path, file)


@pytest.mark.parametrize("name", ["output.weight", "blk.1.attn_k.weight", "token_embd.weight", "output_norm.weight"])
def test_a_missing_tensor(tmp_path: Path, name: str) -> None:
    file = with_tensors(lambda t: None if t.name == name else t)
    if name == "output.weight":  # then the embedding serves
        assert read(tmp_path, file).tied
        return
    with pytest.raises(ModelFileError, match=rf"model.gguf: tensor '{name}' of shape .* is missing"):
        read(tmp_path, file)


def test_a_tensor_of_another_shape(tmp_path: Path) -> None:
    def change(tensor: Tensor) -> Tensor:
        return replace(tensor, shape=(96, 192)[::-1]) if tensor.name == "blk.0.attn_output.weight" else tensor

    with pytest.raises(
        ModelFileError, match=r"'blk.0.attn_output.weight' must have shape \(96, 192\), found \(192, 96\)"
    ):
        read(tmp_path, with_tensors(change))


def test_tensors_that_the_family_does_not_use(tmp_path: Path) -> None:
    """A bias passed over would give wrong outputs without a word."""
    file = tiny_file(SHAPE)
    extra = [Tensor(f"blk.{i}.attn_q.bias", (192,), "f32", bytes(4 * 192)) for i in range(2)]
    with pytest.raises(UnsupportedModel, match=r"'llama' has no use for 'blk.0.attn_q.bias', 'blk.1.attn_q.bias': the"):
        read(tmp_path, replace(file, tensors=[*file.tensors, *extra]))
    more = [Tensor(f"extra.{i}", (1,), "f32", bytes(4)) for i in range(9)]
    with pytest.raises(UnsupportedModel, match=r"'extra.0', 'extra.1', 'extra.2' and 6 more"):
        read(tmp_path, replace(file, tensors=[*file.tensors, *more]))


@pytest.mark.parametrize(("name", "near"), [("llama4", "llama"), ("mamba", "llama")])
def test_an_unknown_architecture(tmp_path: Path, name: str, near: str) -> None:
    file = tiny_file(SHAPE)
    file = replace(file, metadata={**file.metadata, "general.architecture": name})
    with pytest.raises(UnsupportedModel, match=f"architecture '{name}' is not known; the nearest that is: '{near}'"):
        read(tmp_path, file)


@pytest.mark.parametrize(
    "key",
    ["block_count", "embedding_length", "attention.head_count", "feed_forward_length", "context_length"],
)
@pytest.mark.parametrize("wrong", [None, 0, "six", 2.5, [6, 6], True, 2**40])
def test_a_count_that_is_none(tmp_path: Path, key: str, wrong: object) -> None:
    match = "is missing" if wrong is None else "must be a count, found"
    with pytest.raises(ModelFileError, match=f"model.gguf: metadata 'llama.{key}' {match}"):
        read(tmp_path, with_metadata(**{key: wrong}))


@pytest.mark.parametrize("key", ["attention.layer_norm_rms_epsilon", "rope.freq_base"])
@pytest.mark.parametrize("wrong", [0.0, -1.0, float("nan"), float("inf"), "small"])
def test_a_number_that_is_none(tmp_path: Path, key: str, wrong: object) -> None:
    with pytest.raises(ModelFileError, match=f"'llama.{key}' must be a positive number, found"):
        read(tmp_path, with_metadata(**{key: wrong}))


def test_epsilon_has_no_default(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match=r"'llama\.attention.layer_norm_rms_epsilon' is missing"):
        read(tmp_path, with_metadata(attention__layer_norm_rms_epsilon=None))


@pytest.mark.parametrize(
    ("match", "changes"),
    [
        ("6 query heads cannot share 4 key-value heads", {"attention__head_count_kv": 4}),
        ("rotates 34 elements .* even .* 32", {"rope__dimension_count": 34}),
        ("rotates 15 elements .* even .* 32", {"rope__dimension_count": 15}),
        ("keys of 32 and values of 16", {"attention__value_length": 16}),
    ],
)
def test_counts_that_do_not_go_together(tmp_path: Path, match: str, changes: dict[str, Any]) -> None:
    with pytest.raises((ModelFileError, UnsupportedModel), match=match):
        read(tmp_path, with_metadata(**changes))


def test_an_unknown_architecture_and_what_differs(tmp_path: Path) -> None:
    """The nearest is the one whose tensors are nearest, whatever the name."""
    file = tiny_file(SHAPE)

    def renamed(*more: Tensor, lacking: str = "") -> File:
        kept = {key.replace("llama.", "qwen9."): value for key, value in file.metadata.items()}
        tensors = [*(t for t in file.tensors if t.name != lacking or not lacking), *more]
        return replace(file, metadata={**kept, "general.architecture": "qwen9"}, tensors=tensors)

    with pytest.raises(UnsupportedModel, match=r"that is: '(llama|smollm3)'; its tensors are the same, but what"):
        read(tmp_path, renamed())
    norm = Tensor("blk.0.attn_sub_norm.weight", (96,), "f32", bytes(4 * 96))
    with pytest.raises(UnsupportedModel, match=r"; it has 'blk.0.attn_sub_norm.weight' besides$"):
        read(tmp_path, renamed(norm))
    with pytest.raises(
        UnsupportedModel, match=r"lacks 'blk.1.ffn_norm.weight' and it has 'blk.0.attn_sub_norm.weight'"
    ):
        read(tmp_path, renamed(norm, lacking="blk.1.ffn_norm.weight"))
    biases = [
        Tensor(f"blk.{i}.attn_{n}.bias", (rows,), "f32", bytes(4 * rows))
        for i in range(2)
        for n, rows in (("q", 192), ("k", 64), ("v", 64))
    ]
    with pytest.raises(UnsupportedModel, match="that is: 'qwen2'; its tensors are the same"):
        read(tmp_path, renamed(*biases))


def test_scaled_frequencies(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModel, match="scaled as 'odd' are not known"):
        read(tmp_path, with_metadata(rope__scaling__type="odd"))
    with pytest.raises(ModelFileError, match=r"'llama.rope.scaling.type' must be a string, found 3"):
        read(tmp_path, with_metadata(rope__scaling__type=3))
    with pytest.raises(ModelFileError, match=r"a rotary base of 0.5"):
        read(tmp_path, with_metadata(rope__freq_base=0.5))
    with pytest.raises(ModelFileError, match=r"'llama.rope.scaling.factor' must be a positive number"):
        read(tmp_path, with_metadata(rope__scaling__type="linear", rope__scaling__factor=-1.0))
    assert read(tmp_path, with_metadata(rope__scaling__type="none")) == read(tmp_path, tiny_file(SHAPE))
    yarned = read(tmp_path, with_metadata(rope__scaling__type="yarn", rope__scaling__original_context_length=128))
    assert yarned.scaling == Scaling("yarn", 4.0, 128)


def test_factors_are_read_as_numbers_and_change_the_frequencies(tmp_path: Path) -> None:
    file, path = tiny_file(SHAPE), tmp_path / "model.gguf"
    values = np.linspace(1, 8, 16, dtype=np.float32)
    factors = Tensor("rope_freqs.weight", (16,), "f32", values.tobytes())
    path.write_bytes(replace(file, tensors=[*file.tensors, factors]).bytes())
    asked: list[Any] = []

    def rope(turns: Any, positions: int, **rest: Any) -> Any:
        asked.append((turns, rest))

    with ModelFile(path) as source:
        build(source, read_config(source), ReferenceBackend().weights, rope, 9)
    plain = frequencies(10000.0, 32)
    assert asked == [
        (tuple(f / float(v) for f, v in zip(plain, values, strict=True)), {"adjacent": True, "magnitude": 1})
    ]
    zeros = Tensor("rope_freqs.weight", (16,), "f32", bytes(64))
    path.write_bytes(replace(file, tensors=[*file.tensors, zeros]).bytes())
    with ModelFile(path) as source, pytest.raises(ModelFileError, match=r"must hold positive factors, found 0.0"):
        build(source, read_config(source), ReferenceBackend().weights, rope, 9)
    short = Tensor("rope_freqs.weight", (15,), "f32", bytes(60))
    with pytest.raises(ModelFileError, match=r"'rope_freqs.weight' must have shape \(16,\), found \(15,\)"):
        read(tmp_path, replace(file, tensors=[*file.tensors, short]))


@pytest.mark.parametrize("tied", [True, False])
def test_every_tensor_is_packed_once_and_the_table_is_of_adjacent_pairs(tmp_path: Path, tied: bool) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(tiny_file(replace(SHAPE, tied=tied)).bytes())
    backend, packed, asked = ReferenceBackend(), [], []

    def pack(tensors: Any) -> Any:
        packed.extend(tensor.name for tensor in tensors)
        return backend.weights(tensors)

    def rope(turns: Any, positions: int, *, adjacent: bool, magnitude: float) -> Any:
        asked.append((len(turns), positions, adjacent, magnitude))

    with ModelFile(path) as source:
        config = read_config(source)
        model = build(source, config, pack, rope, 77)
        assert sorted(packed) == sorted(source.tensors)
    assert asked == [(16, 77, True, 1.0)]
    assert (model.layers, model.vocabulary) == (2, 300)
    assert [(g.layers, g.heads, g.head_dim) for g in model.groups] == [(2, 2, 32)]


@pytest.mark.parametrize("base", [10000.0, 500000.0, 1e6, 3.5])
@pytest.mark.parametrize("dims", [2, 18, 64, 128])
def test_rotary_frequencies(base: float, dims: int) -> None:
    """base^(-2i / dims), to the last bit or the one beside it, where NumPy's power is not correctly rounded."""
    got = np.array(frequencies(base, dims))
    want = base ** (-np.arange(0, dims, 2, dtype=np.float64) / dims)
    assert got.shape == (dims // 2,)
    assert got[0] == 1.0
    assert (np.abs(got - want) <= 4 * np.spacing(want)).all()


def test_scalings_by_their_definitions() -> None:
    """Against the papers' formulas in NumPy; transformers has its say in tests/families."""
    plain = np.array(frequencies(10000.0, 64))
    np.testing.assert_allclose(linear(plain, 4), plain / 4, rtol=1e-15)
    np.testing.assert_allclose(by_factors(plain, range(1, 33)), plain / np.arange(1, 33), rtol=1e-15)
    stretched = np.array(frequencies(ntk_base(10000.0, 64, 8.0), 64))
    assert stretched[0] == 1.0
    assert stretched[-1] == pytest.approx(plain[-1] / 8, rel=1e-12)
    waves = 2 * np.pi / plain
    turned = np.array(llama3(plain, 8.0, 1.0, 4.0, 8192))
    np.testing.assert_array_equal(turned[waves < 8192 / 4], plain[waves < 8192 / 4])
    np.testing.assert_allclose(turned[waves > 8192], plain[waves > 8192] / 8, rtol=1e-15)
    assert (np.diff(turned) < 0).all()
    turned = np.array(yarn(10000.0, 64, 8.0, 4096))
    turns = 4096 * plain / (2 * np.pi)
    np.testing.assert_array_equal(turned[turns > 40], plain[turns > 40])
    np.testing.assert_allclose(turned[turns < 0.75], plain[turns < 0.75] / 8, rtol=1e-12)
    between = (turns < 30) & (turns > 1.05)
    assert ((turned < plain) & (turned > plain / 8))[between].all()
    assert yarn_magnitude(8.0) == pytest.approx(0.1 * np.log(8) + 1, rel=1e-15)
    assert yarn_magnitude(1.0) == 1.0
