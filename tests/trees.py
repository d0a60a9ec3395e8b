"""Trees of drafts for tests: random ones, a drafter that proposes them, and their paths by brute force."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

from pagoda.engine.request import Sequence as Underway
from pagoda.engine.speculation.drafter import Guess
from pagoda.plan import Chunk

Tree = tuple[tuple[int, ...], tuple[int, ...]]
"""Tokens and parents, depth first."""


def random_tree(rng: random.Random, line: Sequence[int], most: int, vocabulary: int, right: int) -> Tree:
    """At most `most` nodes, no deeper than `line`, whose first `right` tokens are a path anywhere in it; all else is
    wrong. Other nodes hang from any, of the right path too.
    """
    nodes: list[tuple[int, int]] = [(i - 1, token) for i, token in enumerate(line[:right])]  # (parent, token)
    depths, children = [i + 1 for i in range(right)], {}
    for i, (parent, _) in enumerate(nodes):
        children.setdefault(parent, []).append(i)
    for _ in range(max(rng.randint(0, most - right), rng.randint(0, most - right))):
        parent = rng.randint(-1, len(nodes) - 1)
        depth = depths[parent] + 1 if parent >= 0 else 1
        token = rng.randrange(vocabulary)
        taken = {nodes[i][1] for i in children.get(parent, ())} | {line[depth - 1] if depth <= len(line) else token}
        if token not in taken:
            children.setdefault(parent, []).append(len(nodes))
            nodes.append((parent, token))
            depths.append(depth)
    tokens: list[int] = []
    parents: list[int] = []

    def visit(node: int, place: int) -> None:
        below = children.get(node, [])
        rng.shuffle(below)
        for child in below:
            tokens.append(nodes[child][1])
            parents.append(place)
            visit(child, len(tokens) - 1)

    visit(-1, -1)
    return tuple(tokens), tuple(parents)


def leaf_paths(parents: Sequence[int]) -> list[list[int]]:
    """Of each leaf, the drafts from the first to it."""
    paths = []
    for leaf in sorted(set(range(len(parents))) - set(parents)):
        path, at = [], leaf
        while at >= 0:
            path.append(at)
            at = parents[at]
        paths.append(path[::-1])
    return paths


def lines_of(chunk: Chunk) -> list[tuple[tuple[tuple[int, ...], ...], list[int]]]:
    """Of each path of a chunk: its page tables, and which of the chunk's tokens are on it."""
    known = len(chunk.tokens) - chunk.drafts
    if not chunk.parents:
        return [(chunk.pages, list(range(len(chunk.tokens))))]
    paths = leaf_paths(chunk.parents)
    assert len(paths) == 1 + len(chunk.paths)
    return [
        (tables, [*range(known), *(known + draft for draft in path)])
        for tables, path in zip((chunk.pages, *chunk.paths), paths, strict=True)
    ]


def walk(tokens: Sequence[int], parents: Sequence[int], line: Sequence[int]) -> int:
    """How many of a line's first tokens lie on a path of a tree."""
    at = -1
    for depth, token in enumerate(line):
        found = [i for i, p in enumerate(parents) if p == at and tokens[i] == token]
        if not found:
            return depth
        (at,) = found
    return len(line)


class TreeDrafter:
    """Proposes trees with the true tokens on a random path, mostly a few of them, and wrong ones elsewhere.

    Args:
        truth: of a sequence, its next tokens after those known, so many at most.
        vocabulary: of which wrong tokens are taken.
        seed: of which trees it proposes.
    """

    name = "tree"
    seconds = 0.0
    blind = False

    def __init__(
        self, truth: Callable[[Underway, int], Sequence[int]], vocabulary: int, seed: int = 0, most: int = 15
    ) -> None:
        self._truth = truth
        self._vocabulary = vocabulary
        self._rng = random.Random(seed)
        self._most = most
        self._last: dict[int, tuple[int, int]] = {}
        self.whole = self.cut = self.right = 0
        """Trees that were verified, those of which only the first path was, and drafts that were right."""

    def look(self, sequences: Sequence[Underway]) -> None:
        pass

    def guess(self, sequence: Underway, most: int) -> Guess:
        most = min(most, self._most)
        line = list(self._truth(sequence, most))
        if not line:
            return Guess()
        right = min(self._rng.randint(0, len(line)), self._rng.choice((1, 2, 3, 15)))
        tokens, parents = random_tree(self._rng, line, most, self._vocabulary, right)
        self._last[sequence.id] = len(tokens), right
        chances = tuple(0.5 ** _depth(parents, i) for i in range(len(tokens)))
        return Guess(tokens, chances, parents=parents)

    def verified(self, sequence: Underway, asked: int, right: int) -> None:
        size, true = self._last.pop(sequence.id)
        assert right == true if asked == size else right <= true, "a path of a tree is not followed to its end"
        self.whole += asked == size
        self.cut += asked < size
        self.right += right

    def took(self, tokens: int, seconds: float) -> None:
        raise AssertionError("nobody fills in a tree's drafts")

    def forget(self, sequence: Underway) -> None:
        self._last.pop(sequence.id, None)

    def check(self) -> None:
        pass


def _depth(parents: Sequence[int], draft: int) -> int:
    depth = 0
    while draft >= 0:
        depth, draft = depth + 1, parents[draft]
    return depth


def known_outputs(outputs: Callable[[Any, int], Sequence[int]]) -> Callable[[Underway, int], Sequence[int]]:
    """The truth by (request, choice)."""

    def truth(sequence: Underway, most: int) -> Sequence[int]:
        at = sequence.known - len(sequence.prompt)
        return outputs(int(sequence.state.request.id), sequence.choice)[at : at + most]

    return truth
