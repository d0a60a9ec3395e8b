"""`Texts`: where texts of tokens repeat themselves and each other, as Protocols: the work is done elsewhere.

It is asked once for each step, of all sequences together. `backends.texts` implements it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

BREAK = -1
"""In a text: no token, but the end of an output. What is found does not go on past it."""


class Text(Protocol):
    """A text that grows, in which others may be looked up."""

    def extend(self, tokens: Sequence[int]) -> None:
        """It goes on with these."""
        ...

    def __len__(self) -> int: ...

    def check(self) -> None:
        """Assert its invariants."""
        ...


class Line(Protocol):
    """A text that is followed as it comes."""

    def __len__(self) -> int: ...

    def check(self) -> None:
        """Assert its invariants."""
        ...


class Look(NamedTuple):
    """What a line is told."""

    line: Any
    tokens: Sequence[int]
    """It goes on with these."""
    silent: int
    """How many of them, the first ones, tell nothing of how good matches are."""


class Texts(Protocol):
    """Makes texts, and follows lines."""

    def text(self) -> Text:
        """An empty one."""
        ...

    def line(self, others: Sequence[Any]) -> Line:
        """An empty one, which is looked up in these texts too, as they are from now on."""
        ...

    def follow(
        self, looks: Sequence[Look], shortest: int, most: int
    ) -> Sequence[tuple[int, tuple[int, ...], Sequence[tuple[int, bool]]]]:
        """Lines go on.

        Args:
            looks: which, and with what.
            shortest: length of a match that counts.
            most: tokens wanted of what followed it.

        Returns:
            Of each: (length of its longest match, what followed that, and of each token that was not silent and before
            which there was a match: the match's length, and whether it foretold the token).
        """
        ...
