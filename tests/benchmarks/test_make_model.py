"""Models of random weights: read back by an independent reader, sane in size, the same bytes each time."""

import sys
from dataclasses import replace
from pathlib import Path

import gguf
import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import make_model

TINY, MIXTURE = make_model.SHAPES["tiny"], make_model.SHAPES["tiny-moe"]


@pytest.mark.parametrize("shape", [TINY, MIXTURE], ids=lambda shape: shape.architecture)
@pytest.mark.parametrize("mix", sorted(make_model.MIXES))
def test_every_tensor_reads_back_with_the_deviation_it_was_given(
    tmp_path: Path, mix: str, shape: make_model.Shape
) -> None:
    path = tmp_path / "m.gguf"
    figures = make_model.make(path, shape, mix, 3, "tiny")
    assert figures["bytes"] == path.stat().st_size
    reader = gguf.GGUFReader(path)
    listed = {tensor.name: tensor for tensor in make_model.tensors(shape, mix)}
    assert [tensor.name for tensor in reader.tensors] == list(listed)
    for tensor in reader.tensors:
        wanted = listed[tensor.name]
        assert tuple(tensor.shape.tolist()) == wanted.dims
        weights = gguf.dequantize(tensor.data, tensor.tensor_type).astype(np.float64)
        root, spread = float(np.sqrt((weights**2).mean())), 1 / np.sqrt(wanted.blocks())
        assert root == pytest.approx(wanted.deviation, rel=0.005 + spread)  # a block's scale varies by 14 %
        if wanted.format.weights > 1:
            assert abs(weights.mean()) < 2 * wanted.deviation * spread
            assert np.unique(weights).size > 1000
    kinds = {tensor.tensor_type.name.lower() for tensor in reader.tensors}
    assert kinds == {"f32", "q6_k", "q4_k"} if mix == "q4_k_m" else kinds == {"f32", "q8_0", mix}


def test_the_bytes_depend_on_the_seed_alone(tmp_path: Path) -> None:
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        make_model.make(tmp_path / name, TINY, "q4_0", seed, "tiny")
    first, same, other = ((tmp_path / name).read_bytes() for name in "abc")
    assert first == same
    assert first != other
    assert len(first) == len(other)


def test_the_tokenizer_round_trips_any_bytes(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    make_model.make(path, TINY, "q8_0", 0, "tiny")
    meta = {key: field.contents() for key, field in gguf.GGUFReader(path).fields.items()}
    tokens, merges = meta["tokenizer.ggml.tokens"], meta["tokenizer.ggml.merges"]
    assert len(tokens) == len(set(tokens)) == len(meta["tokenizer.ggml.token_type"]) == TINY.vocab
    made = Tokenizer(models.BPE(vocab={t: i for i, t in enumerate(tokens)}, merges=[tuple(m.split()) for m in merges]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    text = "The cat, 12 days\n\tnaïve 你好 🙂"
    ids = made.encode(text).ids
    assert made.decode(ids) == text
    assert len(ids) < len(text.encode())


def test_sizes_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="not whole blocks"):
        make_model.make(tmp_path / "m", replace(TINY, ffn=500), "q4_0", 0, "odd")
    with pytest.raises(SystemExit, match="too small"):
        make_model.make(tmp_path / "m", replace(TINY, vocab=100), "q4_0", 0, "odd")
