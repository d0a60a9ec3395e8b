"""The native texts against an automaton in Python, and that against brute force: every length it finds is the longest
there is, and every place is one.
"""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from pagoda.backends.texts import NativeTexts
from pagoda.engine.speculation.texts import BREAK, Look

from .automaton import ROOT, SuffixAutomaton

TEXTS = st.integers(2, 5).flatmap(lambda n: st.lists(st.integers(0, n - 1), max_size=40))


def places(text: list[int], run: list[int]) -> list[int]:
    """Where the text goes on after each occurrence of a run."""
    return [i + len(run) for i in range(len(text) - len(run) + 1) if text[i : i + len(run)] == run]


@settings(max_examples=300, deadline=None)
@given(TEXTS)
def test_the_longest_end_that_occurred_before(text: list[int]) -> None:
    automaton = SuffixAutomaton()
    for end, token in enumerate(text, 1):
        automaton.extend(token)
        automaton.check()
        length, place = automaton.suffix()
        longest = max(n for n in range(end) if n == 0 or len(places(text[:end], text[end - n : end])) > 1)
        assert length == longest
        if length:
            assert place in places(text[:end], text[end - length : end])[:-1], "its own end is no earlier place"
    assert automaton.text == text


@settings(max_examples=300, deadline=None)
@given(TEXTS, TEXTS, st.lists(st.integers(0, 4), max_size=40))
def test_a_cursor_follows_another_text_while_the_automaton_grows(
    text: list[int], other: list[int], later: list[int]
) -> None:
    automaton, cursor = SuffixAutomaton(text), (ROOT, 0)
    for end, token in enumerate(other, 1):
        cursor = automaton.follow(cursor, token)
        longest = max(n for n in range(end + 1) if n == 0 or places(automaton.text, other[end - n : end]))
        assert cursor[1] == longest
        if longest:
            assert automaton.after(cursor) in places(automaton.text, other[end - longest : end])
        if later:
            automaton.extend(later.pop())
            automaton.check()
            if longest:
                assert automaton.after(cursor) in places(automaton.text, other[end - longest : end])


def test_the_latest_place_counts() -> None:
    """abX abY ab: what followed last is Y."""
    automaton = SuffixAutomaton([1, 2, 7, 1, 2, 8, 1, 2])
    length, place = automaton.suffix()
    assert (length, automaton.text[place]) == (2, 8)


class Reference:
    """What a native line is to do, in Python."""

    def __init__(self, others: list[SuffixAutomaton]) -> None:
        self.own = SuffixAutomaton()
        self.others = [(text, (ROOT, 0)) for text in others]
        self.length, self.place, self.text = 0, 0, self.own

    def extend(self, token: int) -> None:
        self.own.extend(token)
        self.others = [(text, text.follow(cursor, token)) for text, cursor in self.others]
        self.length, self.place = self.own.suffix()
        self.text = self.own
        for text, cursor in self.others:
            if cursor[1] > self.length:
                self.length, self.place, self.text = cursor[1], text.after(cursor), text

    def continuation(self, most: int) -> tuple[int, ...]:
        tokens = self.text.text[self.place : self.place + most] if self.length else []
        while self.text is self.own and 0 < len(tokens) < most:
            tokens += tokens[: most - len(tokens)]
        return tuple(tokens[: tokens.index(BREAK)] if BREAK in tokens else tokens)


OUTPUTS = st.lists(TEXTS, max_size=4)


@settings(max_examples=300, deadline=None)
@given(OUTPUTS, OUTPUTS, st.lists(TEXTS, min_size=1, max_size=8), st.integers(1, 4), st.integers(0, 20))
def test_native_lines_find_what_the_reference_finds(
    one: list[list[int]], two: list[list[int]], parts: list[list[int]], shortest: int, most: int
) -> None:
    """Two lines in turn, in their own texts and in others that grow meanwhile."""
    texts = NativeTexts()
    natives, references = [texts.text(), texts.text()], [SuffixAutomaton(), SuffixAutomaton()]
    lines, oracles = [texts.line(natives), texts.line(())], [Reference(references), Reference([])]
    for turn, part in enumerate(parts):
        for native, reference, outputs in zip(natives, references, (one, two), strict=True):
            if outputs:
                output = [*outputs.pop(), BREAK]
                native.extend(output)
                for token in output:
                    reference.extend(token)
            assert len(native) == len(reference.text)
            native.check()
        tellings = [(part, 0), (part[::-1], turn)]
        looks = [Look(line, *telling) for line, telling in zip(lines, tellings, strict=True)]
        found = texts.follow(looks, shortest, most)
        for oracle, line, (tokens, silent), (length, following, trials) in zip(
            oracles, lines, tellings, found, strict=True
        ):
            expected = []
            for i, token in enumerate(tokens):
                foretold = oracle.text.text[oracle.place] if oracle.length >= shortest else BREAK
                if i >= silent and foretold != BREAK:
                    expected.append((oracle.length, foretold == token))
                oracle.extend(token)
            assert trials == expected
            assert length == oracle.length
            assert following == (oracle.continuation(most) if length >= shortest else ())
            assert len(line) == len(oracle.own.text)
            line.check()
