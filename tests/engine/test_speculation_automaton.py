"""The suffix automaton against brute force: every length it finds is the longest there is, and every place is one."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from pagoda.engine.speculation.automaton import ROOT, SuffixAutomaton

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
