"""`Drafter`: the protocol of whoever guesses what a sequence goes on with. One file for each kind."""

from __future__ import annotations

from collections.abc import Sequence as Many
from dataclasses import dataclass, replace
from typing import Protocol

from pagoda.engine.request import Sequence

MOST_DRAFTS = 15
"""Of one sequence in one step: with its own token they fill two panels of rows (native/src/kernels.h)."""


@dataclass(frozen=True, slots=True)
class Guess:
    """What a sequence may go on with after its last token, known or in flight."""

    tokens: tuple[int, ...] = ()
    """Token ids; or `plan.GUESS` for each that the runner's drafter is to fill in."""
    chances: tuple[float, ...] = ()
    """Of each token, how likely it is right together with all before it; in a tree, with all it follows."""
    sure: float = 1.0
    """How likely the tokens in flight are those that it takes them for: part of the chances."""
    parents: tuple[int, ...] = ()
    """If it is a tree, of each token the one that it follows, as in `plan.tree_paths`: each token known, and no two
    alike after the same. Empty: each follows the one before it.
    """

    def likeliest(self, count: int) -> Guess:
        """So many of its tokens, none without those that it follows: the likeliest, which in a line are the first."""
        if not self.parents:
            return replace(self, tokens=self.tokens[:count], chances=self.chances[:count])
        ranked = sorted(range(len(self.tokens)), key=lambda i: (-self.chances[i], i))
        kept = sorted(ranked[:count])
        places = {-1: -1} | {node: place for place, node in enumerate(kept)}
        assert all(self.parents[node] in places for node in kept), "a node is likelier than the one it follows"
        tokens, chances = tuple(self.tokens[i] for i in kept), tuple(self.chances[i] for i in kept)
        return replace(self, tokens=tokens, chances=chances, parents=tuple(places[self.parents[i]] for i in kept))


NO_GUESS = Guess()


class Drafter(Protocol):
    """Guesses. Used on the engine's thread; everything here takes microseconds."""

    name: str
    seconds: float
    """What it costs the machine room to fill in one token of each sequence, as far as is known; 0 if none is filled in.
    """
    blind: bool
    """Whether only drafts that are verified tell how often it is right."""

    def look(self, sequences: Many[Sequence]) -> None:
        """A step is planned in which these may have drafts: look at their tokens, or at some of them."""
        ...

    def guess(self, sequence: Sequence, most: int) -> Guess:
        """Up to `most` tokens, in a line or in a tree."""
        ...

    def verified(self, sequence: Sequence, asked: int, right: int) -> None:
        """Of `asked` tokens guessed, `right` were right: the first ones, or of a tree those of one path's beginning."""
        ...

    def took(self, tokens: int, seconds: float) -> None:
        """The machine room filled in so many tokens, one after the other, in so many seconds."""
        ...

    def forget(self, sequence: Sequence) -> None:
        """The sequence has ended."""
        ...

    def check(self) -> None:
        """Assert its invariants."""
        ...
