"""WordPiece, against the rule as it is written and against BERT's own way of cutting words."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pagoda.errors import ModelFileError
from pagoda.text.tokenizer import Tokenizer

from .corpus import CORPUS

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
WORDS = (
    "▁the",
    "▁un",
    "aff",
    "able",
    "▁a",
    "b",
    "▁hello",
    "▁,",
    "▁.",
    "▁'",
    "s",
    "▁中",
    "▁e",
    "▁[",
    "▁]",
    "▁u",
    "▁n",
    "▁k",
)


def tiny(words: tuple[str, ...] = WORDS, **keys: object) -> Tokenizer:
    metadata = {
        "model": "bert", "tokens": [*SPECIAL, *words], "token_type": [3] * len(SPECIAL) + [1] * len(words),
        "unknown_token_id": 1, "bos_token_id": 2, "eos_token_id": 3, **keys,
    }  # fmt: skip
    return Tokenizer.from_metadata({f"tokenizer.ggml.{name}": value for name, value in metadata.items()})


def spell(tokenizer: Tokenizer, text: str) -> list[str]:
    return [tokenizer.token_text(i) for i in tokenizer.encode(text)]


def cut(text: str) -> list[str]:
    """As BERT's code does for uncased models: small letters, no accents, punctuation and CJK by themselves."""
    words: list[str] = []
    word = ""
    for character in unicodedata.normalize("NFD", text.lower()):
        kind = unicodedata.category(character)
        if kind == "Mn" or (kind.startswith("C") and character not in "\t\n\r"):
            continue
        point = ord(character)
        ascii_mark = 33 <= point <= 47 or 58 <= point <= 64 or 91 <= point <= 96 or 123 <= point <= 126
        alone = ascii_mark or kind.startswith("P") or 0x4E00 <= point <= 0x9FFF
        if alone or character.isspace():
            words += [word] * bool(word) + [character] * alone
            word = ""
        else:
            word += character
    return words + [word] * bool(word)


def greedy(word: str, vocabulary: dict[str, int]) -> list[int]:
    """The longest known beginning, then the longest that goes on from there; else the word is unknown."""
    ids, start = [], 0
    if len(word) > 100:
        return [1]
    while start < len(word):
        for end in range(len(word), start, -1):
            piece = ("▁" if start == 0 else "") + word[start:end]
            if piece in vocabulary:
                ids.append(vocabulary[piece])
                start = end
                break
        else:
            return [1]
    return ids


def test_words_by_their_longest_pieces() -> None:
    tokenizer = tiny()
    assert spell(tokenizer, "The unaffable, HÉLLO's") == [" the", " un", "aff", "able", " ,", " hello", " '", "[UNK]"]
    assert spell(tokenizer, "ab a中a x" + " " + "a" * 101) == [" a", "b", " a", " 中", " a", "[UNK]", "[UNK]"]
    detokenizer = tokenizer.detokenizer()
    assert detokenizer.push(tokenizer.encode("unaffable,the")) == " unaffable , the"


@settings(max_examples=400)
@given(st.text("ab中é ,.\t\u00a0Aßthe'", max_size=30), st.sets(st.text("▁abhte", min_size=1, max_size=4), max_size=9))
def test_as_it_is_written(text: str, more: set[str]) -> None:
    words = tuple(dict.fromkeys([*WORDS, *(w[:1] + w[1:].replace("▁", "") for w in sorted(more) if w != "▁")]))
    vocabulary = {word: i + len(SPECIAL) for i, word in enumerate(words)}
    expected = [i for word in cut(text) for i in greedy(word, vocabulary)]
    assert list(tiny(words).encode(text)) == expected


def test_hostile_texts() -> None:
    """Latin and ASCII, where Unicode versions agree; the others must at least be cut somehow."""
    tokenizer = tiny()
    vocabulary = {word: i + len(SPECIAL) for i, word in enumerate(WORDS)}
    for text in CORPUS:
        ids = list(tokenizer.encode(text))
        assert all(0 <= i < tokenizer.vocabulary for i in ids)
        if text.isascii():
            assert ids == [i for word in cut(text) for i in greedy(word, vocabulary)], text


def test_capitals_where_the_vocabulary_has_some() -> None:
    assert spell(tiny(("▁The", "▁the")), "The THE the") == [" The", "[UNK]", " the"]
    assert spell(tiny(("▁The", "▁the"), lowercase=True), "The THE") == [" the", " the"]
    assert spell(tiny(("▁the", "▁THE"), lowercase=False), "The THE") == ["[UNK]", " THE"]


def test_nobody_types_control_tokens() -> None:
    tokenizer = tiny()
    for text in SPECIAL:
        assert set(tokenizer.encode(text)).isdisjoint({0, 2, 3, 4}), text
        assert len(tokenizer.encode(text)) == 3
    assert tokenizer.encode("[CLS]the[SEP]", special=True) == (2, 5, 3)


def test_what_a_vocabulary_needs() -> None:
    with pytest.raises(ModelFileError, match=r"which needs tokenizer.ggml.unknown_token_id"):
        tiny(unknown_token_id=None)
    with pytest.raises(ModelFileError, match="a token twice"):
        tiny(("▁a", "b", "▁a"))
