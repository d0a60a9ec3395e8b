"""The tiny models are what they claim: readable, deterministic, and lively enough to tell right from wrong."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pagoda.catalog import ModelFile
from pagoda.errors import ModelFileError
from tiny import SMALLEST_VOCABULARY, TinyShape, byte_letters, tiny_file, tiny_model

SHAPES = [
    {},
    {"layers": 3, "width": 96, "heads": 3, "kv_heads": 1, "head_dim": 32, "ffn": 160, "vocabulary": 259},
    {"format": "f32", "embedding_format": "f16", "width": 40, "heads": 5, "kv_heads": 5, "head_dim": 8, "ffn": 56},
    {"format": "q4_0", "tied": False, "formats": {"ffn_down.weight": "bf16", "blk.1.attn_q.weight": "q8_0"}},
    {"heads": 4, "head_dim": 32, "width": 64, "vocabulary": 600, "embedding_format": "q4_1", "seed": 5},
    {
        **{"width": 256, "heads": 8, "head_dim": 32, "ffn": 256, "format": "q4_k", "embedding_format": "q6_k"},
        "formats": {"ffn_down.weight": "q6_k", "attn_v.weight": "q5_k", "attn_k.weight": "q5_1"},
    },
]


def forward(file: ModelFile, tokens: list[int]) -> np.ndarray:
    """The Llama architecture at its plainest, in f64: [tokens, vocabulary] logits."""
    w = {name: file.tensor(name).floats().astype(np.float64) for name in file.tensors}
    meta = {key.removeprefix("llama."): value for key, value in file.metadata.items()}
    heads, groups = meta["attention.head_count"], meta["attention.head_count_kv"]
    dim, n = meta["rope.dimension_count"], len(tokens)
    angles = np.arange(n)[:, None] * meta["rope.freq_base"] ** (-np.arange(0, dim, 2) / dim)

    def norm(x: np.ndarray, name: str) -> np.ndarray:
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + meta["attention.layer_norm_rms_epsilon"]) * w[name]

    def rotate(x: np.ndarray) -> np.ndarray:
        turned = (x[..., 0::2] + 1j * x[..., 1::2]) * np.exp(1j * angles)[:, None]
        return np.stack([turned.real, turned.imag], -1).reshape(x.shape)

    x = w["token_embd.weight"][tokens]
    for i in range(meta["block_count"]):
        h = norm(x, f"blk.{i}.attn_norm.weight")
        q, k, v = (h @ w[f"blk.{i}.attn_{p}.weight"].T for p in "qkv")
        q, k = rotate(q.reshape(n, heads, dim)), rotate(k.reshape(n, groups, dim))
        k, v = (y.reshape(n, groups, dim).repeat(heads // groups, axis=1) for y in (k, v))
        scores = np.einsum("ihd,jhd->hij", q, k) / np.sqrt(dim) + np.triu(np.full((n, n), -np.inf), 1)
        p = np.exp(scores - scores.max(-1, keepdims=True))
        p /= p.sum(-1, keepdims=True)
        x = x + np.einsum("hij,jhd->ihd", p, v).reshape(n, -1) @ w[f"blk.{i}.attn_output.weight"].T
        h = norm(x, f"blk.{i}.ffn_norm.weight")
        g = h @ w[f"blk.{i}.ffn_gate.weight"].T
        x = x + (g / (1 + np.exp(-g)) * (h @ w[f"blk.{i}.ffn_up.weight"].T)) @ w[f"blk.{i}.ffn_down.weight"].T
    return norm(x, "output_norm.weight") @ w.get("output.weight", w["token_embd.weight"]).T


@pytest.mark.parametrize("shape", SHAPES)
def test_logits_are_lively_and_greedy_output_wanders(tmp_path: Path, shape: dict[str, object]) -> None:
    with ModelFile(tiny_model(tmp_path, **shape)) as file:
        distinct = 0
        for start in (40, 77, 150):
            tokens = [start, 60, 61, 90]
            for _ in range(32):
                logits = forward(file, tokens)
                tokens.append(int(logits[-1].argmax()))
            distinct += len(set(tokens[4:]))
            assert 1.5 < logits.std() < 6
            gaps = np.diff(np.sort(logits, axis=-1)[:, -2:], axis=-1)
            assert np.median(gaps) > 0.1
        assert distinct > 3 * 8


def test_the_whole_context_matters(tmp_path: Path) -> None:
    with ModelFile(tiny_model(tmp_path)) as file:
        tokens = list(range(50, 90))
        changed = [tokens[0] + 1, *tokens[1:]]
        assert np.abs(forward(file, tokens)[-1] - forward(file, changed)[-1]).max() > 0.05


@pytest.mark.parametrize("shape", SHAPES)
def test_the_file_is_what_was_asked_for(tmp_path: Path, shape: dict[str, object]) -> None:
    wanted = TinyShape(**shape)  # type: ignore[arg-type]
    with ModelFile(tiny_model(tmp_path, **shape)) as file:
        assert file.architecture == "llama"
        assert file.tensors["token_embd.weight"].shape == (wanted.vocabulary, wanted.width)
        assert file.tensors["token_embd.weight"].format.name == wanted.embedding_format
        assert file.tensors["blk.1.attn_k.weight"].shape == (wanted.kv_heads * wanted.head_dim, wanted.width)
        assert file.tensors["blk.0.ffn_down.weight"].shape == (wanted.width, wanted.ffn)
        assert file.tensors["blk.0.ffn_down.weight"].format.name == wanted.formats.get("ffn_down.weight", wanted.format)
        assert file.tensors["blk.0.ffn_norm.weight"].format.name == "f32"
        assert ("output.weight" in file.tensors) is not wanted.tied
        assert len(file.metadata["tokenizer.ggml.tokens"]) == wanted.vocabulary  # type: ignore[arg-type]
        assert file.metadata["llama.context_length"] == 512


def test_the_same_arguments_give_the_same_bytes() -> None:
    assert tiny_file(TinyShape(seed=4)).bytes() == tiny_file(TinyShape(seed=4)).bytes()
    assert tiny_file(TinyShape(seed=4)).bytes() != tiny_file(TinyShape(seed=5)).bytes()


def test_the_vocabulary_is_distinct_and_has_every_byte() -> None:
    for size in (SMALLEST_VOCABULARY, 300, 1000):
        tokens = tiny_file(TinyShape(vocabulary=size)).metadata["tokenizer.ggml.tokens"]
        assert isinstance(tokens, list)
        assert len(tokens) == len(set(tokens)) == size
        assert set(byte_letters()) <= set(tokens)
    with pytest.raises(AssertionError, match="needs 259"):
        tiny_file(TinyShape(vocabulary=258))


def test_batches_are_the_tensors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the file's order, whatever fits a batch; every one as `tensor` reads it."""
    with ModelFile(tiny_model(tmp_path)) as file:
        for most in (1, 5000, 2**30):
            monkeypatch.setattr("pagoda.catalog.shards.BATCH", most)
            batches = list(file.batches(reversed(file.tensors)))
            assert (len(batches) == 1) == (most == 2**30)
            read = [tensor for batch in batches for tensor in batch]
            assert [tensor.name for tensor in read] == list(file.tensors)
            for tensor in read:
                one = file.tensor(tensor.name)
                assert (tensor.shape, tensor.format) == (one.shape, one.format)
                assert tensor.raw.tobytes() == one.raw.tobytes()
                assert not isinstance(tensor.stored, np.ndarray)
                assert tensor.stored.part(3, 5).read().tobytes() == one.raw.tobytes()[3:8]
        with pytest.raises(ModelFileError, match="no tensor 'nope'"):
            list(file.batches(["nope"]))
