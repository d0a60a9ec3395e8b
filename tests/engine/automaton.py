"""`SuffixAutomaton`: where in a text its own end, or another text's, occurred before.

native/src/suffixes.h is held to it. Knows token ids only. Blumer et al. 1985, "The smallest automaton recognizing the
subwords of a text": built online, in constant amortised time for each token, with at most two states for each.
"""

from __future__ import annotations

from collections.abc import Iterable

ROOT = 0


class SuffixAutomaton:
    """All runs of tokens of a growing text. A state stands for runs that occur at the same places."""

    __slots__ = ("_after", "_last", "_length", "_link", "_next", "text")

    def __init__(self, text: Iterable[int] = ()) -> None:
        self.text: list[int] = []
        self._next: list[dict[int, int]] = [{}]
        self._link = [-1]
        self._length = [0]
        """Of a state, the length of its longest run."""
        self._after = [0]
        """Of a state, where the text went on after one of its runs."""
        self._last = ROOT
        for token in text:
            self.extend(token)

    def extend(self, token: int) -> None:
        """The text goes on with this token."""
        following, link, length = self._next, self._link, self._length
        if (met := link[self._last]) > ROOT:
            self._after[met] = len(self.text)  # of its places the latest is likeliest to be met again
        self.text.append(token)
        state, at = self._state({}, 0, length[self._last] + 1, len(self.text)), self._last
        while at >= 0 and token not in following[at]:
            following[at][token] = state
            at = link[at]
        if at >= 0:
            known = following[at][token]
            if length[known] != length[at] + 1:
                known = self._split(at, token, known)
            link[state] = known
        self._last = state

    def suffix(self) -> tuple[int, int]:
        """(length, place) of the longest end of the text that occurred before, and where the text then went on.

        (0, 0) if none did. Of several places it is one of the latest.
        """
        state = self._link[self._last]
        return (0, 0) if state <= ROOT else (self._length[state], self._after[state])

    def follow(self, cursor: tuple[int, int], token: int) -> tuple[int, int]:
        """Of another text's end, (state, length) as it occurs in this one: the same after one token more."""
        state, size = self.settle(cursor)
        while state > ROOT and token not in self._next[state]:
            state = self._link[state]
            size = self._length[state]
        after = self._next[state].get(token)
        return (ROOT, 0) if after is None else (after, size + 1)

    def settle(self, cursor: tuple[int, int]) -> tuple[int, int]:
        """A cursor from before the text grew: states may have been split since."""
        state, size = cursor
        while state > ROOT and size <= self._length[self._link[state]]:
            state = self._link[state]
        return state, size

    def after(self, cursor: tuple[int, int]) -> int:
        """Where the text went on after a cursor's run."""
        return self._after[self.settle(cursor)[0]]

    def check(self) -> None:
        """Assert that links lead to shorter runs, that every state's run is where it says, and how many there are."""
        assert len(self._length) <= max(2 * len(self.text), 2), "more states than a text can have"
        for state in range(1, len(self._length)):
            link, size, after = self._link[state], self._length[state], self._after[state]
            assert 0 <= self._length[link] < size <= after <= len(self.text), f"state {state}"
            run = self.text[after - size : after]
            at = ROOT
            for token in run:
                at = self._next[at][token]
            assert at == state, f"state {state} is not where its run leads"

    def _state(self, following: dict[int, int], link: int, length: int, after: int) -> int:
        self._next.append(following)
        self._link.append(link)
        self._length.append(length)
        self._after.append(after)
        return len(self._link) - 1

    def _split(self, at: int, token: int, known: int) -> int:
        """Part the shorter runs of a state from its longer ones: they have just occurred once more."""
        following, link = self._next, self._link
        clone = self._state(dict(following[known]), link[known], self._length[at] + 1, self._after[known])
        link[known] = clone
        while at >= 0 and following[at].get(token) == known:
            following[at][token] = clone
            at = link[at]
        return clone
