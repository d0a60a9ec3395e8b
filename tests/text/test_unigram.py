"""The unigram model, against SentencePiece itself and against a search that tries everything."""

from __future__ import annotations

import contextlib
import struct
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pagoda.errors import ModelFileError
from pagoda.text.charsmap import CharsMap
from pagoda.text.tokenizer import Tokenizer

from .corpus import CORPUS
from .spm import trained
from .tiny import sentencepiece

OPTIONS: dict[str, dict[str, Any]] = {
    "nfkc": {},
    "bytes": {"byte_fallback": True},
    "as-it-stands": {"add_dummy_prefix": False, "remove_extra_whitespaces": False},
    "identity": {"normalization_rule_name": "identity"},
    "small-letters": {"normalization_rule_name": "nmt_nfkc_cf", "control_symbols": ["<ctl>"]},
}
_made: dict[str, tuple[Any, Tokenizer]] = {}


def pair(name: str) -> tuple[Any, Tokenizer]:
    """SentencePiece and ours, of one vocabulary."""
    if name not in _made:
        oracle, metadata = trained(**OPTIONS[name])
        _made[name] = oracle, Tokenizer.from_metadata(metadata)
    return _made[name]


def score(oracle: Any, ids: list[int]) -> float:
    """Of a spelling, as the model has it; pieces that stand for nothing cost ten more than the worst."""
    ids_of_pieces = [i for i in range(oracle.vocab_size()) if not oracle.is_control(i) and not oracle.is_byte(i)]
    worst = min(oracle.get_score(i) for i in ids_of_pieces)
    return sum(worst - 10 if oracle.is_unknown(i) else oracle.get_score(i) for i in ids if not oracle.is_byte(i))


@pytest.mark.parametrize("name", OPTIONS)
def test_as_sentencepiece_has_it(name: str) -> None:
    oracle, tokenizer = pair(name)
    different = 0
    for text in CORPUS:
        ours, theirs = list(tokenizer.encode(text)), oracle.encode(text)
        if ours != theirs:
            # It sums in single precision, so of spellings that are as good as each other it may take another one.
            assert [oracle.id_to_piece(i) for i in sorted(ours)] == [oracle.id_to_piece(i) for i in sorted(theirs)] or (
                score(oracle, ours) == pytest.approx(score(oracle, theirs), rel=1e-6)
            ), text
            different += 1
    assert different <= 10, "only where spellings tie"


@settings(max_examples=300, deadline=None)
@given(st.text(max_size=40))
@example("e\u0301 \u1100\u1161\u11a8 \ufb01 ½ ﷽")
def test_any_text(text: str) -> None:
    for name in ("nfkc", "small-letters", "identity"):
        oracle, tokenizer = pair(name)
        if "\0" in text:
            continue
        ours, theirs = list(tokenizer.encode(text)), oracle.encode(text)
        assert ours == theirs or score(oracle, ours) == pytest.approx(score(oracle, theirs), rel=1e-6)


def tiny(pieces: dict[str, float], **keys: object) -> Tokenizer:
    return Tokenizer.from_metadata(
        sentencepiece(pieces, **{"ggml__model": "t5", "ggml__add_space_prefix": False} | keys)
    )


@settings(max_examples=300)
@given(
    st.dictionaries(st.text("ab▁", min_size=1, max_size=4), st.floats(-9, -0.5), min_size=1, max_size=12),
    st.text("ab ", max_size=9),
)
def test_no_spelling_is_likelier(pieces: dict[str, float], text: str) -> None:
    tokenizer = tiny({**{"a": -20.0, "b": -20.0, "▁": -20.0}, **pieces})
    known = {**{"a": -20.0, "b": -20.0, "▁": -20.0}, **pieces}
    spelled = [tokenizer.token_text(i).replace(" ", "▁") for i in tokenizer.encode(text)]
    assert "".join(spelled) == text.replace(" ", "▁")

    def best(rest: str) -> float:
        if not rest:
            return 0.0
        return max(s + best(rest[len(p) :]) for p, s in known.items() if rest.startswith(p))

    assert sum(known[part] for part in spelled) == pytest.approx(best(text.replace(" ", "▁")))


def test_what_no_piece_spells() -> None:
    with_bytes = tiny({"a": -1.0})
    assert [with_bytes.token_bytes(i) for i in with_bytes.encode("aéa")] == [b"a", b"\xc3", b"\xa9", b"a"]
    without = Tokenizer.from_metadata(sentencepiece({"a": -1.0}, fallback=False, ggml__model="t5"))
    assert [without.token_text(i) for i in without.encode("aéüa")] == ["<unk>", "a", "<unk>", "a"], "one for a run"


def test_nobody_types_control_or_byte_tokens() -> None:
    tokenizer = tiny({letter: -1.0 for letter in "</s>0xAunk"})
    for text in ("</s>", "<s>", "<unk>", "<0x0A>"):
        assert "".join(tokenizer.token_text(i) for i in tokenizer.encode(text)) == text
        assert len(tokenizer.encode(text)) == len(text)
    assert tokenizer.encode("</s>", special=True) == (2,)


def test_blanks() -> None:
    pieces = {"▁": -3.0, "▁a": -1.0, "a": -2.0, "b": -2.0}
    squeezed = tiny(pieces, ggml__add_space_prefix=True, ggml__remove_extra_whitespaces=True)
    spelled = [[squeezed.token_text(i) for i in squeezed.encode(text)] for text in ("  a   b ", "a", " ", "")]
    assert spelled == [[" a", " ", "b"], [" a"], [], []]
    kept = tiny(pieces)
    assert [kept.token_text(i) for i in kept.encode("  a ")] == [" ", " a", " "]


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"", "of 0 bytes"),
        (b"\xff\xff\xff\xff", "has a trie of"),
        (struct.pack("<I", 6) + b"123456", "has a trie of 6"),
        (struct.pack("<129I", 512, *(97 | 1 << 30 if i == 97 else 0 for i in range(128))) + b"x\0", "points outside"),
        (
            struct.pack("<129I", 512, *(97 | 1 << 8 | 1 << 10 if i == 97 else 0 for i in range(128))) + b"\xff\0",
            "no text",
        ),
    ],
)
def test_damaged_normalisations(raw: bytes, message: str) -> None:
    with pytest.raises(ModelFileError, match=message):
        CharsMap(raw).normalize("abc")


@settings(max_examples=300)
@given(st.binary(min_size=8, max_size=200), st.text(max_size=20))
def test_no_normalisation_escapes(raw: bytes, text: str) -> None:
    size = (len(raw) // 2) & ~3
    with contextlib.suppress(ModelFileError):
        CharsMap(size.to_bytes(4, "little") + raw).normalize(text)


@pytest.mark.parametrize("lacking", ["scores", "unknown_token_id"])
def test_what_a_unigram_vocabulary_needs(lacking: str) -> None:
    metadata = sentencepiece({"a": -1.0}, ggml__model="t5")
    del metadata[f"tokenizer.ggml.{lacking}"]
    with pytest.raises(ModelFileError, match=r"tokenizer.ggml.model is t5, which needs"):
        Tokenizer.from_metadata(metadata)
