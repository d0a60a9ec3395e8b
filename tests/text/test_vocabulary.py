from __future__ import annotations

import pytest

from pagoda.errors import ModelFileError, UnsupportedModel
from pagoda.text.tokenizer import Tokenizer
from pagoda.text.vocabulary import Kind, read_vocabulary

from .tiny import byte_level, sentencepiece


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("tokens", None, "tokens must be a list of strings"),
        ("tokens", [], "tokens must be a list of strings"),
        ("tokens", ["a", 1], "tokens must be a list of strings"),
        ("tokens", "abc", "tokens must be a list of strings"),
        ("token_type", [1, 1], "one entry for each of the"),
        ("token_type", 3, "token_type must be a list of numbers"),
        ("token_type", ["1"], "token_type must be a list of numbers"),
        ("merges", [b"a b"], "merges must be a list of strings"),
        ("merges", ["a b", "abc"], "merges must have two parts each"),
        ("merges", ["a b c"], "merges must have two parts each"),
        ("merges", ["a b"], "merges does not fit tokenizer.ggml.tokens"),
        ("bos_token_id", 100000, "bos_token_id must be an id under"),
        ("eos_token_id", -1, "eos_token_id must be an id under"),
        ("eos_token_id", "2", "eos_token_id must be a int"),
        ("add_bos_token", "yes", "add_bos_token must be a bool"),
        ("pre", 7, "pre must be a str"),
    ],
)
def test_damaged_metadata_is_named(key: str, value: object, words: str) -> None:
    with pytest.raises(ModelFileError, match=words):
        Tokenizer.from_metadata(byte_level() | {f"tokenizer.ggml.{key}": value})


def test_scores_must_fit_the_tokens() -> None:
    with pytest.raises(ModelFileError, match="scores must have one entry for each of the 261 tokens, got 1"):
        Tokenizer.from_metadata(sentencepiece({"a": -1.0, "b": -2.0}, ggml__scores=[0.0]))
    with pytest.raises(ModelFileError, match=r"needs tokenizer\.ggml\.scores"):
        Tokenizer.from_metadata(sentencepiece({"a": -1.0}, ggml__scores=None))


def test_byte_tokens_must_be_spelled_as_bytes() -> None:
    metadata = sentencepiece({"a": -1.0})
    metadata["tokenizer.ggml.tokens"][3] = "0x00"  # type: ignore[index]
    with pytest.raises(ModelFileError, match="spelled like <0x0A>, got '0x00'"):
        Tokenizer.from_metadata(metadata)


def test_something_must_spell_unknown_characters() -> None:
    with pytest.raises(ModelFileError, match="neither 256 byte tokens nor"):
        Tokenizer.from_metadata(sentencepiece({"a": -1.0}, fallback=False, ggml__unknown_token_id=None))


def test_unknown_algorithm_is_named() -> None:
    with pytest.raises(UnsupportedModel, match=r"tokenizer\.ggml\.model is 'rwkv'"):
        Tokenizer.from_metadata(byte_level(ggml__model="rwkv"))


def test_unknown_pre_tokenizer_is_named_with_the_nearest_known() -> None:
    with pytest.raises(UnsupportedModel, match=r"'qwen3' .* qwen2"):
        Tokenizer.from_metadata(byte_level(ggml__pre="qwen3"))


def test_named_special_tokens_are_control_tokens_whatever_their_type() -> None:
    vocabulary = read_vocabulary(byte_level(control=("<eos>",), ggml__token_type=[1] * 271, ggml__eos_token_id=0))
    assert vocabulary.kinds[0] == Kind.CONTROL
    assert vocabulary.control == {"<eos>": 0}
    assert vocabulary.stop_ids == {0}


def test_without_token_types_all_tokens_are_normal() -> None:
    vocabulary = read_vocabulary(byte_level() | {"tokenizer.ggml.token_type": None})
    assert set(vocabulary.kinds) == {Kind.NORMAL}
    assert not vocabulary.stop_ids


def test_stop_ids_come_from_keys_and_from_names() -> None:
    control = ("<a>", "<b>", "<c>", "<|im_end|>", "<|eot_id|>", "<end_of_turn>", "<d>")
    vocabulary = read_vocabulary(
        byte_level(control=control, ggml__eos_token_id=0, ggml__eot_token_id=1, ggml__eom_token_id=2)
    )
    assert vocabulary.stop_ids == {0, 1, 2, 3, 4, 5}


def test_end_tokens_by_name_must_be_control_tokens() -> None:
    assert read_vocabulary(byte_level(control=("<x>",), defined=("<|im_end|>",))).stop_ids == frozenset()


def test_harmony_messages_end_without_ending_the_turn() -> None:
    control = ("<|end|>", "<|return|>", "<|call|>")
    assert read_vocabulary(byte_level(control=control, ggml__eos_token_id=1)).stop_ids == {1, 2}
    assert read_vocabulary(byte_level(control=control, ggml__eos_token_id=0)).stop_ids == {0, 1, 2}
    assert read_vocabulary(byte_level(control=("<|end|>",))).stop_ids == {0}
