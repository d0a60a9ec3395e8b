"""Hugging Face directories: every family as its checkpoint is published, and each lack and each lie by its name."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from families.test_families import TOLERANCE, golden, log_softmax, logits_of_source
from families.tiny_families import CONFIGS, ids, weights
from hf_files import byte_fallback, byte_level, safetensors, unigram, wordpiece, write_model
from pagoda import LLM, SamplingParams
from pagoda.catalog import HuggingDirectory, open_model
from pagoda.errors import ModelFileError, PagodaError, UnsupportedModel
from pagoda.models import read_config
from pagoda.text.tokenizer import Tokenizer


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PAGODA_CACHE", str(tmp_path / "cache"))


def written(directory: Path, name: str = "llama3", dtype: str = "F32", shards: int = 1) -> Path:
    return write_model(directory / name, CONFIGS[name], weights(CONFIGS[name]), dtype, shards)


@pytest.mark.parametrize("name", [name for name in CONFIGS if name != "gpt-oss"])
def test_every_family_like_transformers(tmp_path: Path, name: str) -> None:
    with HuggingDirectory(written(tmp_path, name)) as source:
        difference = np.abs(log_softmax(logits_of_source(source, ids())) - log_softmax(golden(name)))
    assert difference.max() < TOLERANCE


def test_as_transformers_5_writes_config_json(tmp_path: Path) -> None:
    """`rope_parameters` instead of `rope_theta` and `rope_scaling`; of Gemma 3, for each kind of layer."""
    for name in ("llama3", "gemma3", "phi3-long"):
        old = CONFIGS[name]
        scaling = old["rope_scaling"]
        kept = {k: v for k, v in old.items() if not k.startswith("rope_") and k != "sliding_window_pattern"}
        rope = {"rope_theta": old["rope_theta"], **scaling}
        if name == "gemma3":
            rope = {"full_attention": rope, "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0}}
            kinds = ["sliding_attention", "sliding_attention", "full_attention", "sliding_attention"]
            kept["layer_types"] = kinds
        path = write_model(tmp_path / name, kept | {"rope_parameters": rope}, weights(old))
        with HuggingDirectory(path) as source:
            difference = np.abs(log_softmax(logits_of_source(source, ids())) - log_softmax(golden(name)))
        assert difference.max() < TOLERANCE


@pytest.mark.parametrize(("dtype", "tolerance"), [("F16", 0.05), ("BF16", 0.5)])
def test_narrow_numbers_and_shards(tmp_path: Path, dtype: str, tolerance: float) -> None:
    with HuggingDirectory(written(tmp_path, "gemma3", dtype, 3)) as source:
        assert source.tensors["blk.0.attn_q.weight"].format.name == dtype.lower()
        assert source.tensors["blk.0.attn_norm.weight"].format.name == "f32", "1 is added: no number is rounded"
        difference = np.abs(log_softmax(logits_of_source(source, ids())) - log_softmax(golden("gemma3")))
    assert 1e-6 < difference.max() < tolerance


def test_it_runs_whole(tmp_path: Path) -> None:
    """Through the engine, with its own tokenizer, template and ends."""
    path = written(tmp_path)
    with LLM(str(path), threads=1) as llm:
        assert llm.max_model_len == 64
        done = llm.generate(["hello there"], SamplingParams(max_tokens=6, temperature=0))
        assert done[0].usage.completion_tokens >= 1
        assert llm.tokenizer.encode_prompt("hello")[0] == 0
        assert llm.tokenizer.encode_chat([{"role": "user", "content": "hello"}])[:1] != ()
        assert llm.tokenizer.stop_ids >= {1, 2}


def test_the_digest_is_of_weights_and_config(tmp_path: Path) -> None:
    digests = set()
    for name, config in (("a", {}), ("b", {"rms_norm_eps": 1e-6}), ("c", {})):
        made = weights(CONFIGS["llama3"])
        if name == "c":
            made["model.norm.weight"][3] += 1
        with HuggingDirectory(write_model(tmp_path / name, CONFIGS["llama3"] | config, made)) as source:
            digests.add(source.digest())
    assert len(digests) == 3


# --- tokenizers

TEXTS = ("hello there, HELLO 12345 世界\n\n  don't  \t<|end|> x", "", "a", "e\u0301 12 ll\r\n\r\n")


@pytest.mark.parametrize(("whole", "nfc"), [(True, False), (False, False)])
def test_byte_level_ids(tmp_path: Path, whole: bool, nfc: bool) -> None:
    path = written(tmp_path)
    wanted = byte_level(whole=whole, nfc=nfc)
    wanted.save(str(path / "tokenizer.json"))
    with open_model(path) as source:
        ours = Tokenizer.from_metadata(source.metadata)
    for text in TEXTS:
        assert list(ours.encode(text, special=True)) == wanted.encode(text, add_special_tokens=False).ids
        plain = text.replace("<|end|>", "")
        assert list(ours.encode_prompt(plain)) == wanted.encode(plain).ids
    assert 1 not in ours.encode("a <|end|> typed by a user")


def test_sentencepiece_ids(tmp_path: Path) -> None:
    """BPE with byte fallback: the order of merges is that of the pieces' scores."""
    path, wanted = written(tmp_path), byte_fallback()
    wanted.save(str(path / "tokenizer.json"))
    with open_model(path) as source:
        assert source.metadata["tokenizer.ggml.model"] == "llama"
        ours = Tokenizer.from_metadata(source.metadata)
    for text in ("hello there", "the hell", "hehe  the", "ähem 世", "t the thell"):
        assert list(ours.encode_prompt(text)) == wanted.encode(text).ids, text


@pytest.mark.parametrize("squeeze", [False, True])
def test_unigram_ids(tmp_path: Path, squeeze: bool) -> None:
    """As T5's and XLM-R's tokenizers are saved; prompts end with EOS, as the post-processor says."""
    path, wanted = written(tmp_path), unigram(squeeze)
    wanted.save(str(path / "tokenizer.json"))
    with open_model(path) as source:
        assert source.metadata["tokenizer.ggml.model"] == "t5"
        ours = Tokenizer.from_metadata(source.metadata)
    for text in ("hello there", "  the   hell ", "hehe", "ähem", "t the thell", ""):
        assert list(ours.encode_prompt(text)) == wanted.encode(text).ids, text


@pytest.mark.parametrize("lower", [False, True])
def test_wordpiece_ids(tmp_path: Path, lower: bool) -> None:
    """As BERT's tokenizers are saved: [CLS] before a prompt, [SEP] after it."""
    path, wanted = written(tmp_path), wordpiece(lower)
    wanted.save(str(path / "tokenizer.json"))
    (path / "generation_config.json").write_text(json.dumps({"eos_token_id": 3}))
    names = {"cls_token": "[CLS]", "sep_token": "[SEP]", "unk_token": "[UNK]", "pad_token": "[PAD]"}
    (path / "tokenizer_config.json").write_text(json.dumps(names))
    with open_model(path) as source:
        ours = Tokenizer.from_metadata(source.metadata)
    for text in ("Hello the, 世x", "héllo", "unaffable", " the\n[MASK] ", ""):
        assert list(ours.encode_prompt(text)) == wanted.encode(text.replace("[MASK]", "[ MASK ]")).ids, text
        assert list(ours.encode(text, special=True)) == wanted.encode(text, add_special_tokens=False).ids


@pytest.mark.parametrize(
    ("match", "kind", "change"),
    [
        ("text is changed in a way that is not known", "Unigram", {"normalizer": {"type": "Lowercase"}}),
        ("keeps blanks, and puts one before", "Unigram", {"normalizer": None}),
        ("is no base64", "Unigram", {"normalizer": {"type": "Precompiled", "precompiled_charsmap": "?"}}),
        ("another normaliser than BERT's", "WordPiece", {"normalizer": {"type": "NFC"}}),
        ("cut otherwise than BERT's", "WordPiece", {"pre_tokenizer": {"type": "Whitespace"}}),
        ("set as it never was", "WordPiece", {"normalizer": {"type": "BertNormalizer", "handle_chinese_chars": False}}),
        ("none of a Unigram model", "Unigram", {"model": {"type": "Unigram", "vocab": {"a": 1}}}),
        ("none of a WordPiece model", "WordPiece", {"model": {"type": "WordPiece", "vocab": [["a", 1]]}}),
        ("of type 'WordLevel'; BPE, Unigram and WordPiece can be read", "Unigram", {"model": {"type": "WordLevel"}}),
    ],
)
def test_tokenizers_that_cannot_be_read(tmp_path: Path, match: str, kind: str, change: dict[str, Any]) -> None:
    path = written(tmp_path)
    made = json.loads((unigram(True) if kind == "Unigram" else wordpiece(True)).to_str())
    (path / "tokenizer.json").write_text(json.dumps(made | change))
    with pytest.raises(PagodaError, match=match):
        open_model(path)


def test_words_cut_in_an_unknown_way_are_refused(tmp_path: Path) -> None:
    path = written(tmp_path)
    byte_level(cut=r"\w+").save(str(path / "tokenizer.json"))
    with pytest.raises(UnsupportedModel, match="words are cut in a way that is not known"):
        open_model(path)


# --- lacks and lies


def test_what_a_directory_must_have(tmp_path: Path) -> None:
    for missing in ("config.json", "tokenizer.json", "model.safetensors"):
        path = written(tmp_path, "qwen3")
        (path / missing).unlink()
        with pytest.raises(ModelFileError, match=f"{missing}"):
            open_model(path)
    (tmp_path / "empty").mkdir()
    with pytest.raises(ModelFileError, match=r"empty: has no config.json"):
        open_model(tmp_path / "empty")


@pytest.mark.parametrize(
    ("match", "changes"),
    [
        (r"models of type \['llama'\] are not known", {"model_type": ["llama"]}),
        ("models of type 'mamba' are not known", {"model_type": "mamba"}),
        ("models of type 'gpt_oss' are not known", {"model_type": "gpt_oss"}),
        ("quant_method 'bitsandbytes' cannot be read", {"quantization_config": {"quant_method": "bitsandbytes"}}),
        ("num_hidden_layers must be a count", {"num_hidden_layers": -1}),
        ("scaled as 'proportional' are not known", {"rope_scaling": {"type": "proportional", "factor": 2.0}}),
        ("rope_scaling must be an object", {"rope_scaling": 3.5}),
        ("low_freq_factor is 9.0", {"rope_scaling": CONFIGS["llama3"]["rope_scaling"] | {"low_freq_factor": 9.0}}),
        ("heads of 6400000 elements", {"head_dim": 6400000}),
        ("factor must be a positive number, found 'x'", {"rope_scaling": {"type": "linear", "factor": "x"}}),
        ("'lm_head.weight' is missing", {"tie_word_embeddings": False}),
        (r"must have shape \(\d+, 64\)", {"num_key_value_heads": 4}),
        (r"'blk.3.attn_norm.weight' of shape \(64,\) is missing", {"num_hidden_layers": 4}),
        ("no use for 'model.layers.2.", {"num_hidden_layers": 2}),
    ],
)
def test_a_config_that_lies(tmp_path: Path, match: str, changes: dict[str, Any]) -> None:
    config = CONFIGS["llama3"]
    path = write_model(tmp_path / "model", config | changes, weights(config))
    with pytest.raises(PagodaError, match=match), open_model(path) as source:
        read_config(source)


ENTRY = {"dtype": "F32", "shape": [64], "data_offsets": [0, 256]}


@pytest.mark.parametrize(
    ("match", "change"),
    [
        ("it is truncated or damaged", {"model.norm.weight": ENTRY | {"data_offsets": [2**40, 2**40 + 256]}}),
        ("takes 256 bytes, and its offsets say 4", {"model.norm.weight": ENTRY | {"data_offsets": [0, 4]}}),
        ("has offsets", {"model.norm.weight": ENTRY | {"data_offsets": [256, 0]}}),
        ("has shape", {"model.norm.weight": ENTRY | {"shape": [-64]}}),
        ("has shape", {"model.norm.weight": ENTRY | {"shape": [2**63, 2**63]}}),
        ("has dtype 'F3'", {"model.norm.weight": ENTRY | {"dtype": "F3"}}),
        ("not an object", {"model.norm.weight": 3}),
        ("overlap", {"model.norm.weight": ENTRY}),
    ],
)
def test_a_header_that_lies(tmp_path: Path, match: str, change: dict[str, Any]) -> None:
    path = written(tmp_path)
    (path / "model.safetensors").write_bytes(safetensors(weights(CONFIGS["llama3"]), changes=change))
    with pytest.raises(ModelFileError, match=match):
        open_model(path)


@pytest.mark.parametrize(
    ("match", "damage"),
    [
        ("it says its header has", lambda raw: (2**62).to_bytes(8, "little") + raw[8:]),
        ("it says its header has", lambda raw: raw[:4]),
        ("is no JSON", lambda raw: raw[:8] + b"[" * 100 + raw[108:]),
        ("truncated or damaged", lambda raw: raw[:-1]),
        ("stands in the header twice", lambda _: len(TWICE).to_bytes(8, "little") + TWICE),
        ("no object of tensors", lambda _: (2).to_bytes(8, "little") + b"[]"),
    ],
)
def test_damaged_bytes(tmp_path: Path, match: str, damage: Callable[[bytes], bytes]) -> None:
    path = written(tmp_path) / "model.safetensors"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(ModelFileError, match=match):
        open_model(path.parent)


TWICE = b'{"a": 1, "a": 2}'


def test_shards_and_their_index(tmp_path: Path) -> None:
    path = written(tmp_path, "qwen3", shards=2)
    index = path / "model.safetensors.index.json"
    sound = json.loads(index.read_text())

    def refuse(match: str, places: Any) -> None:
        index.write_text(json.dumps({"weight_map": places}))
        with pytest.raises(ModelFileError, match=match):
            open_model(path)

    refuse("no weight_map", ["x"])
    refuse("outside the directory", {"a": "../other.safetensors"})
    refuse("has no tensor 'extra'", sound["weight_map"] | {"extra": "model-00001-of-00002.safetensors"})
    refuse("model-00003-of-00003.safetensors: cannot be read", {"a": "model-00003-of-00003.safetensors"})
    index.write_text(json.dumps(sound))
    (path / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(ModelFileError, match=r"model-00002-of-00002.safetensors: cannot be read: No such file"):
        open_model(path)


def test_numbers_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    path = written(tmp_path)
    change = {"model.extra": {"dtype": "I64", "shape": [0], "data_offsets": [0, 0]}}
    (path / "model.safetensors").write_bytes(safetensors(weights(CONFIGS["llama3"]), changes=change))
    with pytest.raises(UnsupportedModel, match=r"'model.extra' is in I64; F32, F16, BF16 can be read"):
        open_model(path)


def test_a_mutated_header_raises_only_our_errors(tmp_path: Path) -> None:
    """A few hundred random damages."""
    path = written(tmp_path) / "model.safetensors"
    raw, rng = bytearray(path.read_bytes()), np.random.default_rng(3)
    size, refused = int.from_bytes(raw[:8], "little") + 8, 0
    for _ in range(300):
        damaged = bytearray(raw)
        for _ in range(int(rng.integers(1, 4))):
            damaged[int(rng.integers(0, size))] = int(rng.integers(0, 256))
        path.write_bytes(damaged)
        try:
            with open_model(path.parent) as source:
                read_config(source)
        except PagodaError:
            refused += 1
    assert refused > 100
