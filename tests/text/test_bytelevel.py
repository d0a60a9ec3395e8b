from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pagoda.errors import InvalidRequest
from pagoda.text.bytelevel import BYTES, ByteLevel
from pagoda.text.pretokenizers import PRE_TOKENIZERS
from pagoda.text.tokenizer import Tokenizer
from pagoda.text.vocabulary import read_vocabulary

from .corpus import CORPUS
from .tiny import MERGES, byte_level

TINY = Tokenizer.from_metadata(byte_level(defined=("<think>", "\n\n")))
TEXT = st.text(st.characters(exclude_categories=("Cs",)))
BITS = st.lists(
    st.sampled_from(["<", "|", "im_", "start", "end", ">", "<|im_start|>", "<think>", "\n", " ", "é", "🙂"])
)


def decode(tokenizer: Tokenizer, ids: tuple[int, ...]) -> str:
    detokenizer = tokenizer.detokenizer()
    return detokenizer.push(ids) + detokenizer.flush()


def spell(tokenizer: Tokenizer, ids: tuple[int, ...]) -> list[str]:
    return [tokenizer.token_text(token_id) for token_id in ids]


def test_alphabet_has_each_byte_once() -> None:
    assert sorted(BYTES.values()) == list(range(256))
    assert all(character.isprintable() and not character.isspace() for character in BYTES)
    assert (BYTES["A"], BYTES["Ġ"], BYTES["Ċ"], BYTES["ÿ"], BYTES["Ń"]) == (65, 32, 10, 255, 173)


def test_merges_apply_best_first_within_words() -> None:
    assert spell(TINY, TINY.encode("hello world")) == ["hello", " world"]
    assert spell(TINY, TINY.encode("hellworld")) == ["hell", "w", "or", "ld"]
    assert spell(TINY, TINY.encode("aaaaaaa")) == ["aaaa", "aa", "a"]


@given(TEXT)
def test_decoding_gives_the_text_back(text: str) -> None:
    assert decode(TINY, TINY.encode(text)) == text


@given(BITS.map("".join))
def test_decoding_gives_text_with_control_texts_back(text: str) -> None:
    assert decode(TINY, TINY.encode(text)) == text
    assert b"".join(map(TINY.token_bytes, TINY.encode(text, special=True))).decode() == text


def test_decoding_gives_the_corpus_back() -> None:
    for text in CORPUS:
        assert decode(TINY, TINY.encode(text)) == text


@pytest.mark.model
@settings(max_examples=300)
@given(
    st.text(
        st.characters(exclude_categories=("Cs",), exclude_characters="\x04\x06\x13\x14\x16\x1d", max_codepoint=0x3FFFF)
    )
)
def test_decoding_gives_the_text_back_with_the_default_model(smollm2: Tokenizer, text: str) -> None:
    assert decode(smollm2, smollm2.encode(text)) == text


def test_control_tokens_only_if_asked_for() -> None:
    assert spell(TINY, TINY.encode("a<|im_end|>b", special=True)) == ["a", "<|im_end|>", "b"]
    plain = TINY.encode("a<|im_end|>b")
    assert spell(TINY, plain) == ["a", "<|", "im", "_", "e", "n", "d", "|>", "b"]
    assert decode(TINY, plain) == "a<|im_end|>b"


def test_user_defined_tokens_always() -> None:
    for special in (False, True):
        assert spell(TINY, TINY.encode("<think>\n\n\n", special=special)) == ["<think>", "\n\n", "\n"]


def test_control_tokens_have_bytes_but_add_no_text() -> None:
    (token_id,) = TINY.encode("<|im_end|>", special=True)
    assert TINY.token_bytes(token_id) == b"<|im_end|>"
    assert TINY.token_text(token_id) == "<|im_end|>"
    assert decode(TINY, (token_id,)) == ""


def test_half_a_character_has_bytes_and_a_replacement_for_text() -> None:
    ids = TINY.encode("é")
    assert [TINY.token_bytes(token_id) for token_id in ids] == [b"\xc3", b"\xa9"]
    assert spell(TINY, ids) == ["\ufffd", "\ufffd"]


@pytest.mark.parametrize("token_id", [-1, TINY.vocabulary])
def test_ids_out_of_range_are_refused(token_id: int) -> None:
    with pytest.raises(IndexError, match=f"token ids run from 0 to {TINY.vocabulary - 1}, got {token_id}"):
        TINY.token_bytes(token_id)


def test_no_merge_makes_a_control_token() -> None:
    tokenizer = Tokenizer.from_metadata(byte_level(control=("end",), merges=("e n", "en d")))
    assert spell(tokenizer, tokenizer.encode("end")) == ["en", "d"]
    assert spell(tokenizer, tokenizer.encode("end", special=True)) == ["end"]


def test_no_whole_word_makes_a_control_token() -> None:
    tokenizer = Tokenizer.from_metadata(byte_level(control=("stop",), ggml__pre="llama-bpe"))
    assert spell(tokenizer, tokenizer.encode("stop")) == list("stop")


def test_whole_words_are_kept_where_the_model_was_trained_so() -> None:
    metadata = byte_level(merges=("a b",))
    metadata["tokenizer.ggml.tokens"] += ["xyz"]  # type: ignore[operator]
    metadata["tokenizer.ggml.token_type"] += [1]  # type: ignore[operator]
    words = {pre: Tokenizer.from_metadata(metadata | {"tokenizer.ggml.pre": pre}) for pre in ("llama-bpe", "gpt-2")}
    assert spell(words["llama-bpe"], words["llama-bpe"].encode("xyz")) == ["xyz"]
    assert spell(words["gpt-2"], words["gpt-2"].encode("xyz")) == ["x", "y", "z"]


def test_bytes_that_are_missing_are_left_out() -> None:
    metadata = byte_level()
    index = metadata["tokenizer.ggml.tokens"].index("Ą")  # type: ignore[attr-defined]
    metadata["tokenizer.ggml.tokens"][index] = "unused"  # type: ignore[index]
    tokenizer = Tokenizer.from_metadata(metadata)
    assert decode(tokenizer, tokenizer.encode("a\x04b")) == "ab"


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({}, ["a"]),
        ({"ggml__add_bos_token": True}, ["<|im_start|>", "a"]),
        ({"ggml__add_bos_token": True, "ggml__bos_token_id": None}, ["a"]),
        ({"ggml__add_eos_token": True}, ["a", "<|im_end|>"]),
        ({"ggml__pre": "llama-bpe"}, ["<|im_start|>", "a"]),
        ({"ggml__pre": "llama-bpe", "ggml__add_bos_token": False}, ["a"]),
    ],
)
def test_prompts_begin_with_bos_if_the_model_wants_it(keys: dict[str, object], expected: list[str]) -> None:
    tokenizer = Tokenizer.from_metadata(byte_level(**{"ggml__bos_token_id": 0, "ggml__eos_token_id": 1} | keys))
    assert spell(tokenizer, tokenizer.encode_prompt("a")) == expected
    assert spell(tokenizer, tokenizer.encode("a")) == ["a"]


@pytest.mark.parametrize("text", ["\ud800", "a\udfff", "\ud83d \ude42"])
def test_lone_surrogates_are_refused(text: str) -> None:
    at = next(index for index, character in enumerate(text) if 0xD800 <= ord(character) <= 0xDFFF)
    for encode, name in ((TINY.encode, "text"), (TINY.encode_prompt, "prompt")):
        with pytest.raises(InvalidRequest, match=f"lone surrogate, .* at character {at}") as caught:
            encode(text)
        assert caught.value.param == name


def test_text_must_be_a_string() -> None:
    with pytest.raises(InvalidRequest, match="prompt must be a string, got 5"):
        TINY.encode_prompt(5)  # type: ignore[arg-type]


def test_threads_share_one_tokenizer() -> None:
    expected = [TINY.encode(text) for text in CORPUS]
    with ThreadPoolExecutor(4) as pool:
        for _ in range(4):
            assert list(pool.map(TINY.encode, CORPUS)) == expected


WORDS = {
    "gpt-2": [
        ("I'll go, OK?!", ["I", "'ll", " go", ",", " OK", "?!"]),
        ("a   b\n\n c ", ["a", "  ", " b", "\n\n", " c", " "]),
        ("x123 45Ⅷ", ["x", "123", " 45Ⅷ"]),
    ],
    "smollm": [
        ("x123 45Ⅷ", ["x", "1", "2", "3", " ", "4", "5", "Ⅷ"]),
        ("don't 1st", ["don", "'t", " ", "1", "st"]),
    ],
    "llama-bpe": [
        ("I'LL 1234567", ["I", "'LL", " ", "123", "456", "7"]),
        ("f(x);\n\n  y = $z", ["f", "(x", ");\n\n", " ", " y", " =", " $", "z"]),
        ("a\n \nb", ["a", "\n \n", "b"]),
    ],
    "qwen2": [("x12 'S.b", ["x", "1", "2", " '", "S", ".b"]), ("e\u0301", ["é"])],
    "qwen35": [("नमस्ते 1", ["नमस्ते", " ", "1"])],
    "gpt-4o": [
        ("HTMLParser's can't 1234", ["HTMLParser's", " can't", " ", "123", "4"]),
        ("aB//\n", ["a", "B", "//\n"]),
    ],
    "tekken": [("camelCase 12's", ["camel", "Case", " ", "1", "2", "'s"])],
    "deepseek-v3": [("x1234漢字かなa .b", ["x", "123", "4", "漢字かな", "a", " .", "b"])],
    "deepseek-llm": [("ab 12é漢\n", ["ab", " ", "12", "é", "漢", "\n"])],
    "deepseek-coder": [("ab(c) 12", ["ab", "(", "c", ")", " ", "1", "2"])],
    "bloom": [("a b, c", ["a", " b", ",", " c"])],
    "viking": [("ab12 3", ["ab", "1", "2", " ", "3"])],
    "seed-coder": [("a;\n\nb", ["a", ";", "\n\n", "b"])],
    "command-r": [("e\u03011a", ["é", "1", "a"])],
}


@pytest.mark.parametrize(("pre", "text", "words"), [(pre, *case) for pre, cases in WORDS.items() for case in cases])
def test_words_of_each_family(pre: str, text: str, words: list[str]) -> None:
    assert _words(pre, text) == words


@pytest.mark.parametrize("pre", sorted(PRE_TOKENIZERS))
def test_every_pre_tokenizer_keeps_every_character(pre: str) -> None:
    if not PRE_TOKENIZERS[pre].nfc:
        for text in CORPUS:
            assert "".join(_words(pre, text)) == text


def _words(pre: str, text: str) -> list[str]:
    library = ByteLevel(read_vocabulary(byte_level(merges=MERGES, ggml__pre=pre)))._tokenizer
    normalized = library.normalizer.normalize_str(text) if library.normalizer else text
    cut = library.pre_tokenizer.pre_tokenize_str(normalized)
    return [bytes([BYTES[character] for character in word]).decode() for word, _ in cut]
