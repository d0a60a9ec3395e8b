"""`NativeTexts`: where texts of tokens repeat themselves and each other, by suffix automata in native code.

Implements `engine.speculation.texts.Texts`. Ten to a hundred nanoseconds a token; about ninety bytes.
"""

from __future__ import annotations

from collections.abc import Sequence

from pagoda.backends import _native


class NativeTexts:
    """Makes texts, and follows lines."""

    def text(self) -> _native.Text:
        """An empty one."""
        return _native.Text()

    def line(self, others: Sequence[_native.Text]) -> _native.Line:
        """An empty one, which is looked up in these texts too."""
        return _native.Line(others)

    def follow(
        self, looks: Sequence[tuple[_native.Line, Sequence[int], int]], shortest: int, most: int
    ) -> list[tuple[int, tuple[int, ...], list[tuple[int, bool]]]]:
        """Lines go on: of each (length of its match, what followed, how good matches were)."""
        return _native.follow(looks, shortest, most)
