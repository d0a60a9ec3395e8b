from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from pagoda.text.tokenizer import Tokenizer

from .corpus import CORPUS
from .tiny import sentencepiece

LETTERS = {letter: -100.0 - index for index, letter in enumerate("▁abcdehilorw")}
WORDS = {"he": -1.0, "ll": -2.0, "hell": -4.0, "hello": -5.0, "▁w": -3.0, "or": -6.0, "ld": -7.0, "orld": -8.0}
WORDS |= {"▁world": -9.0, "▁hello": -10.0, "▁▁": -11.0, "▁h": -12.0}
GEMMA = ("<bos>", "<eos>", "<start_of_turn>", "<end_of_turn>")


def spell(tokenizer: Tokenizer, ids: tuple[int, ...]) -> list[str]:
    return [tokenizer.token_text(token_id) for token_id in ids]


def decode(tokenizer: Tokenizer, ids: tuple[int, ...]) -> str:
    detokenizer = tokenizer.detokenizer()
    return detokenizer.push(ids) + detokenizer.flush()


def plain(pieces: dict[str, float], **keys: object) -> Tokenizer:
    return Tokenizer.from_metadata(sentencepiece(pieces, **{"ggml__add_space_prefix": False} | keys))


def brute_force(text: str, pieces: dict[str, float]) -> list[str]:
    """Join, over and over, the leftmost of the neighbours whose joint piece has the best score."""
    parts = list(text.replace(" ", "▁"))
    while True:
        found = [
            (-pieces[parts[i] + parts[i + 1]], i) for i in range(len(parts) - 1) if parts[i] + parts[i + 1] in pieces
        ]
        if not found:
            return parts
        _, at = min(found)
        parts[at : at + 2] = [parts[at] + parts[at + 1]]


def test_best_scores_join_first() -> None:
    tokenizer = plain(LETTERS | WORDS)
    assert spell(tokenizer, tokenizer.encode("hello world")) == ["hello", " world"]
    assert spell(tokenizer, tokenizer.encode("  hi")) == ["  ", "h", "i"]
    assert spell(tokenizer, tokenizer.encode("   ")) == ["  ", " "]


@settings(max_examples=400)
@given(
    st.dictionaries(st.text("ab▁", min_size=2, max_size=5), st.integers(-4, 0).map(float), min_size=1, max_size=14),
    st.text("ab ", max_size=60),
)
def test_as_brute_force_does_it(pieces: dict[str, float], text: str) -> None:
    pieces = pieces | {"a": -9.0, "b": -9.0, "▁": -9.0}
    tokenizer = plain(pieces)
    expected = [part.replace("▁", " ") for part in brute_force(text, pieces)]
    assert spell(tokenizer, tokenizer.encode(text)) == expected
    assert tokenizer.encode(text) == tokenizer.encode(text), "a second time, from the cache"


def test_pieces_that_reach_across_blanks() -> None:
    tokenizer = plain({"a": -9.0, ">": -9.0, "▁": -9.0, "▁a": -2.0, ">▁": -1.0, ">▁a": -3.0})
    assert spell(tokenizer, tokenizer.encode("a> a a")) == ["a", "> a", " a"]


def test_unknown_characters_become_bytes() -> None:
    tokenizer = plain(LETTERS | WORDS)
    ids = tokenizer.encode("héo🙂")
    assert [tokenizer.token_bytes(token_id) for token_id in ids] == [b"h", b"\xc3", b"\xa9", b"o", *_bytes("🙂")]
    assert decode(tokenizer, ids) == "héo🙂"


def test_without_bytes_unknown_characters_become_the_unknown_token() -> None:
    tokenizer = plain(LETTERS, fallback=False)
    assert spell(tokenizer, tokenizer.encode("aéb")) == ["a", "<unk>", "b"]
    assert decode(tokenizer, tokenizer.encode("aéb")) == "ab"


@given(st.text(st.characters(exclude_categories=("Cs",), exclude_characters="▁")))
def test_decoding_gives_the_text_back(text: str) -> None:
    tokenizer = PLAIN
    assert decode(tokenizer, tokenizer.encode(text)) == text


PLAIN = plain(LETTERS | WORDS)


def test_decoding_gives_the_corpus_back() -> None:
    for text in CORPUS:
        assert decode(PLAIN, PLAIN.encode(text)) == text.replace("▁", " ")


def test_a_blank_goes_before_the_text_unless_the_file_says_not() -> None:
    tokenizer = Tokenizer.from_metadata(sentencepiece(LETTERS | WORDS))
    assert spell(tokenizer, tokenizer.encode("hello")) == [" hello"]
    assert spell(tokenizer, tokenizer.encode("<s>hello", special=True)) == ["<s>", " hello"]
    assert spell(tokenizer, tokenizer.encode("")) == []


def test_prompts_begin_with_bos_unless_the_file_says_not() -> None:
    assert spell(PLAIN, PLAIN.encode_prompt("hello")) == ["<s>", "hello"]
    without = plain(LETTERS | WORDS, ggml__add_bos_token=False)
    assert spell(without, without.encode_prompt("hello")) == ["hello"]


def test_control_tokens_are_not_spelled_by_plain_text() -> None:
    tokenizer = plain({"<": -9.0, "s": -9.0, ">": -9.0, "<s": -1.0})
    assert spell(tokenizer, tokenizer.encode("<s>")) == ["<s", ">"]
    assert spell(tokenizer, tokenizer.encode("<s>", special=True)) == ["<s>"]
    assert spell(tokenizer, tokenizer.encode("<unk><0x41>")) == list("<unk><0x41>")


def test_user_defined_tokens_are_longest_first_and_keep_their_blanks() -> None:
    tokenizer = plain(LETTERS | WORDS, defined=("  ", "   ", "\n", "\n\n"))
    assert spell(tokenizer, tokenizer.encode("a     b\n\n\n")) == ["a", "   ", "  ", "b", "\n\n", "\n"]
    assert decode(tokenizer, tokenizer.encode("a     b\n\n\n")) == "a     b\n\n\n"


def test_gemma_files_without_a_template_have_gemmas() -> None:
    tokenizer = plain(LETTERS | WORDS, control=GEMMA, defined=("\n",))
    chat = [{"role": "system", "content": "hello"}, {"role": "user", "content": " world "}]
    assert "".join(spell(tokenizer, tokenizer.encode_chat(chat))) == (
        "<bos><start_of_turn>user\nhello\n\nworld<end_of_turn>\n<start_of_turn>model\n"
    )
    assert {tokenizer.token_text(token_id) for token_id in tokenizer.stop_ids} == {"<eos>", "<end_of_turn>"}


def _bytes(text: str) -> list[bytes]:
    return [bytes([byte]) for byte in text.encode()]
