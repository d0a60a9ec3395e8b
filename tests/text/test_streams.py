"""What is streamed never depends on where the stream is cut."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pagoda.text.detokenizer import Detokenizer
from pagoda.text.stops import StopStrings

PIECES = st.sampled_from(
    [b"a", "é".encode(), "漢".encode(), "🙂".encode(), b"\xff", b"\xe2\x82", b"\xf0\x9f", b"\x80", b""]
)
STREAM = st.lists(PIECES, max_size=12).map(b"".join)
CUTS = st.lists(st.integers(0, 60), max_size=12)


def parts(length: int, cuts: list[int]) -> list[slice]:
    edges = sorted({0, length, *(cut for cut in cuts if cut < length)})
    return [slice(begin, end) for begin, end in pairwise(edges)]


def detokenize(stream: bytes, cuts: list[int]) -> list[str]:
    detokenizer = Detokenizer(lambda byte: bytes([byte]))
    texts = []
    for part in parts(len(stream), cuts):
        texts.append(detokenizer.push(stream[part]))
        detokenizer.check()
    texts.append(detokenizer.flush())
    detokenizer.check()
    return texts


@settings(max_examples=500)
@given(STREAM, CUTS)
def test_text_does_not_depend_on_the_cuts(stream: bytes, cuts: list[int]) -> None:
    assert "".join(detokenize(stream, cuts)) == stream.decode(errors="replace")


@given(st.text(st.characters(exclude_categories=("Cs",)), max_size=8))
def test_characters_come_whole_and_as_soon_as_they_are(text: str) -> None:
    stream = text.encode()
    detokenizer = Detokenizer(lambda byte: bytes([byte]))
    for end in range(len(stream)):
        got = detokenizer.push([stream[end]])
        detokenizer.check()
        before = stream[:end].decode(errors="ignore")
        assert before + got == stream[: end + 1].decode(errors="ignore")
    assert detokenizer.flush() == ""


def test_a_token_may_hold_several_characters_and_halves() -> None:
    output = {0: b"a\xf0\x9f", 1: b"\x99", 2: b"\x82b\xc3", 3: b"", 4: b"\xa9"}
    detokenizer = Detokenizer(output.__getitem__)
    assert [detokenizer.push([token_id]) for token_id in (0, 1, 2, 3, 4)] == ["a", "", "🙂b", "", "é"]
    assert detokenizer.push([]) == detokenizer.flush() == ""


def test_broken_bytes_at_the_end_are_one_replacement() -> None:
    assert detokenize(b"a\xf0\x9f\x99", [1, 2, 3]) == ["a", "", "", "", "\ufffd"]
    assert detokenize(b"\xe2\x82a", [1, 2]) == ["", "", "\ufffda", ""]


SMALL = st.text("ab", max_size=24)
STOPS = st.lists(st.text("ab", min_size=1, max_size=5), max_size=4)


def first_stop(text: str, stops: list[str]) -> int | None:
    """Where the first stop string begins: the first one to be complete, of these the longest."""
    for end in range(len(text) + 1):
        found = [len(stop) for stop in stops if text[:end].endswith(stop)]
        if found:
            return end - max(found)
    return None


@settings(max_examples=1000)
@given(SMALL, STOPS, CUTS)
def test_stop_strings_do_not_depend_on_the_cuts(text: str, stops: list[str], cuts: list[int]) -> None:
    search = StopStrings(stops)
    out, matched = "", False
    for part in parts(len(text), cuts):
        certain, matched = search.push(text[part])
        search.check()
        out += certain
        if matched:
            break
        seen = text[: part.stop]
        held = max((size for stop in stops for size in range(len(stop)) if seen.endswith(stop[:size])), default=0)
        assert out == seen[: len(seen) - held], "exactly what could begin a stop string is held back"
    out += search.flush()
    search.check()
    begin = first_stop(text, stops)
    assert matched == (begin is not None)
    assert out == text[:begin]


def test_nothing_follows_a_stop_string() -> None:
    search = StopStrings(["end"])
    assert search.push("the e") == ("the ", False)
    assert search.push("nd of it") == ("", True)
    assert search.push("more") == ("", True)
    assert search.flush() == ""
    search.check()


def test_what_was_held_back_comes_when_it_begins_no_stop_string() -> None:
    search = StopStrings(["\n\nUser:", "###"])
    assert search.push("a\n\nUs") == ("a", False)
    assert search.push("e it ##") == ("\n\nUse it ", False)
    assert search.flush() == "##"


def test_without_stop_strings_all_is_certain() -> None:
    search = StopStrings([])
    assert search.push("abc") == ("abc", False)
    assert search.flush() == ""
    search.check()


def test_an_empty_stop_string_is_refused() -> None:
    with pytest.raises(ValueError, match="must not be empty"):
        StopStrings(["a", ""])


def test_long_repetitive_stop_strings_take_one_pass() -> None:
    search = StopStrings(["a" * 5000 + "b"])
    for _ in range(20):
        search.push("a" * 1000)
    assert search.push("b") == ("", True)
