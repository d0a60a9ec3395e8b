"""`StepPlan` down, `StepResult` up: the only words that engine and runner share.

Plain frozen data with a reason per field; no tensors. A plan is complete in itself: a recorded list of plans can be
replayed. Page tables are whole, and the same tuple object until they change, so the runner converts each once. What a
step has hundreds of are msgspec's structures: made in a tenth of the time of a frozen dataclass, and not looked at by
the garbage collector.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from operator import attrgetter

from msgspec import Struct

from pagoda.types import SamplingParams, TokenLogprob

LAST = -1
"""In `Chunk.tokens`: the token that the latest plan in flight will produce for this sequence."""
MOST_OF_STEP = 64
"""Drafts of all sequences in one step: each has a row of logits."""
GUESS = -2
"""In `Chunk.tokens`, of drafts: the token that the runner's own drafter finds likeliest there."""


@dataclass(frozen=True, slots=True)
class SequenceStart:
    """A sequence the runner has not met before."""

    sequence: int
    """Unique for the engine's lifetime."""
    prompt: tuple[int, ...]
    """The prompt: the repetition penalty looks at it."""
    params: SamplingParams
    """With `seed` resolved."""
    choice: int
    """Which of the request's `n` choices: part of the noise's key."""
    candidates: int = -1
    """At least so many likeliest tokens come with each sample, whatever the parameters ask for; 0: just its own
    log-probability; -1: what they ask for."""


@dataclass(frozen=True, slots=True)
class PageCopy:
    """Copy a page's first slots before the step: how a shared page is split for writing."""

    group: int
    source: int
    target: int
    slots: int


@dataclass(frozen=True, slots=True)
class PageMove:
    """One page of each KV group, saved to the tier or loaded from it. Its bytes go past the engine, by ticket."""

    ticket: int
    """Unique for the engine's lifetime."""
    pages: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TreePath:
    """Drafts of a tree that follow each other: one that begins a path, and those after it, to the path's end."""

    first: int
    """Its first draft."""
    end: int
    """One past its last draft."""
    depth: int
    """Of its first draft: 1 for one that would follow the last known token."""
    parent: int
    """The draft that its first one would follow; -1: the last known token."""
    leaves: int
    """Number of the path that it leaves, which its parent is on; 0 for the first path too."""

    @property
    def end_depth(self) -> int:
        """Depth of its last draft: so many positions beyond the last known token's it needs slots for."""
        return self.depth + self.end - self.first - 1


@lru_cache(256)
def tree_paths(parents: tuple[int, ...]) -> tuple[TreePath, ...]:
    """The paths of a tree of drafts, in the order of the drafts that begin them.

    Args:
        parents: of each draft, the one it would follow; -1: the last known token. Depth first: a draft follows the one
            before it, or that one's parent or an ancestor of it, and then it begins a path.

    Raises:
        ValueError: they are not a tree's, or in another order.
    """
    if not parents:
        return ()
    line: list[int] = []  # the draft before and its ancestors, from the root on
    begun: list[tuple[int, int, int, int]] = []
    for draft, parent in enumerate(parents):
        while line and line[-1] != parent:
            line.pop()
        if not line and parent != -1:
            raise ValueError(f"draft {draft} follows {parent}, which is not on the path before it: {parents}")
        if parent != draft - 1 or not begun:
            leaves = bisect_right(begun, parent, key=lambda path: path[0]) - 1
            begun.append((draft, len(line) + 1, parent, max(leaves, 0)))
        line.append(draft)
    ends = [first for first, *_ in begun[1:]] + [len(parents)]
    return tuple(
        TreePath(first, end, depth, parent, leaves)
        for (first, depth, parent, leaves), end in zip(begun, ends, strict=True)
    )


class Chunk(Struct, frozen=True, gc=False):
    """The tokens of one sequence that this step computes."""

    sequence: int
    start: int
    """Absolute position of the first token: how many of the sequence are computed already."""
    tokens: tuple[int, ...]
    """Token ids, at least one; `LAST` may stand alone or before drafts."""
    pages: tuple[tuple[int, ...], ...]
    """The page table of each KV group: page numbers that cover positions 0 to start + len(tokens) - 1; of a tree, to
    the end of its first path. Before the first row's window, in a group that has one, they may be -1.
    """
    samples: bool
    """Whether the last known token's logits are sampled: the last of `tokens` but for drafts."""
    drafts: int = 0
    """How many of the last tokens are drafts, to be verified. No plan behind has a chunk of this sequence before the
    result is there: only then is it known how many were right.
    """
    drafter: str = ""
    """Whose drafts they are."""
    parents: tuple[int, ...] = ()
    """If the drafts are a tree, of each the draft that it would follow (`tree_paths`); empty: the one before it. Drafts
    that would follow the same are different tokens.
    """
    paths: tuple[tuple[tuple[int, ...], ...], ...] = ()
    """The page tables of each of the tree's paths but the first, whose are `pages`: one for each KV group, to the
    path's end. From the page on in which it leaves another, a path has pages of its own; in the first of them, the
    slots before `start` are as in `pages`, and those from there on are written with the other's.
    """

    def __post_init__(self) -> None:
        if self.parents or self.paths:
            self._check_tree()

    @property
    def end(self) -> int:
        """How many tokens of the sequence are computed after this step, and known to be its own."""
        return self.start + len(self.tokens) - self.drafts

    def path(self, sampled: Sequence[int]) -> int:
        """The number of the path on which a result's tokens lie: of all but the last, which is no draft."""
        drafts, at = self.tokens[len(self.tokens) - self.drafts :], -1
        for token in sampled[:-1]:
            at = next(i for i in range(at + 1, self.drafts) if self.parents[i] == at and drafts[i] == token)
        return max(bisect_right(tree_paths(self.parents), at, key=attrgetter("first")) - 1, 0)

    def _check_tree(self) -> None:
        """Raise ValueError unless drafts, parents and paths are a tree."""
        paths, drafts = tree_paths(self.parents), self.tokens[len(self.tokens) - self.drafts :]
        if len(self.parents) != self.drafts or self.drafts >= len(self.tokens):
            raise ValueError(
                f"{self.drafts} of {len(self.tokens)} tokens are drafts, {len(self.parents)} have a parent"
            )
        if len(self.paths) != len(paths) - 1:
            raise ValueError(f"a tree of {len(paths)} paths, and {len(self.paths)} tables for those after the first")
        if min(drafts) < 0:
            raise ValueError(f"a tree's drafts are tokens, got {min(drafts)}: nobody fills them in")
        if len(set(zip(self.parents, drafts, strict=True))) < self.drafts:
            raise ValueError(f"two drafts of {drafts} follow the same and are the same, by {self.parents}")


@dataclass(frozen=True, slots=True)
class StepPlan:
    """What one step will do. Order: saves, loads, copies, then the pass over all chunks, then sampling, then ends.

    A plan that saves or loads may have no chunks.
    """

    number: int
    """Counts up by one."""
    chunks: tuple[Chunk, ...]
    """At most one of each sequence."""
    starts: tuple[SequenceStart, ...] = ()
    copies: tuple[PageCopy, ...] = ()
    ends: tuple[int, ...] = ()
    """Sequences that the runner may forget: they are in no later plan."""
    saves: tuple[PageMove, ...] = ()
    """Whole pages, as all earlier plans leave them."""
    loads: tuple[PageMove, ...] = ()
    """No page twice."""

    @property
    def rows(self) -> int:
        """Tokens computed in this step."""
        return sum(len(chunk.tokens) for chunk in self.chunks)

    @property
    def drafts(self) -> int:
        """Drafts among them."""
        return sum(chunk.drafts for chunk in self.chunks)


class Sampled(Struct, frozen=True, gc=False):
    """A token that a chunk produced."""

    sequence: int
    token: int
    logprob: TokenLogprob | None = None
    """If the sequence's parameters ask for it."""


@dataclass(frozen=True, slots=True)
class StepResult:
    """What one step produced."""

    number: int
    sampled: tuple[Sampled, ...]
    """For each chunk that samples, in the plan's order: one token, or one more than drafts of it were right."""
    seconds: float
    """How long the machine room worked on it."""
    guessing: float = 0.0
    """How much of that its own drafter took."""


def first_page(window: int | None, start: int, page_size: int) -> int:
    """The first page of a KV group that rows from position `start` on see."""
    return 0 if window is None else max(start - window + 1, 0) // page_size


def most_pages(window: int | None, tokens: int, chunk: int, page_size: int) -> int:
    """Most pages of a KV group that a sequence of so many tokens holds at once, if a step computes `chunk` of them at
    most: all, or those of what the first row of a chunk sees and of the chunk, wherever in a page that begins.
    """
    pages = -(-tokens // page_size)
    return pages if window is None else min(pages, -(-(window - 1 + chunk) // page_size) + 1)


@dataclass(frozen=True, slots=True)
class Capacity:
    """What the runner turned out to hold, measured at boot; the configuration never changes."""

    pages: tuple[int, ...]
    """Pages of each KV group."""
    page_size: int
    """Token slots of a page."""
    max_model_len: int
    """Longest sequence, prompt and output together, in tokens."""
    vocabulary: int
    """Token ids run from 0 to this, exclusive."""
    fingerprint: str
    """Of the weights, formats and arithmetic: outputs are a function of it and of the request."""
    unit_bytes: int = 0
    """Bytes of one page of every KV group; 0 if a runner's pages are only numbers."""
    layout: str = ""
    """What a page's bytes mean besides the fingerprint: pages are moved within one layout only."""
    windows: tuple[int | None, ...] = ()
    """Of each KV group, how many positions a row sees, its own included: pages before them may be given back. None:
    all. The first group's rows see all; an empty tuple says that every group's do."""
    page_bytes: tuple[int, ...] = ()
    """Of one page of each group: together `unit_bytes`. Empty if a runner's pages are only numbers."""

    def pages_of(self, tokens: int, start: int) -> tuple[int, ...]:
        """Of the first so many tokens, how many pages of each group rows from position `start` on see."""
        windows, size = self.windows or (None,) * len(self.pages), self.page_size
        return tuple(-(-tokens // size) - first_page(window, start, size) for window in windows)
