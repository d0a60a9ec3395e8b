"""`StepPlan` down, `StepResult` up: the only words that engine and runner share.

Plain frozen data with a reason per field; no tensors. A plan is complete in itself: a recorded list of plans can be
replayed. Page tables are whole, and the same tuple object until they change, so the runner converts each once.
"""

from __future__ import annotations

from dataclasses import dataclass

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
class Chunk:
    """The tokens of one sequence that this step computes."""

    sequence: int
    start: int
    """Absolute position of the first token: how many of the sequence are computed already."""
    tokens: tuple[int, ...]
    """Token ids, at least one; `LAST` may stand alone or before drafts."""
    pages: tuple[tuple[int, ...], ...]
    """The page table of each KV group: page numbers that cover positions 0 to start + len(tokens) - 1. Before the first
    row's window, in a group that has one, they may be -1."""
    samples: bool
    """Whether the last known token's logits are sampled: the last of `tokens` but for drafts."""
    drafts: int = 0
    """How many of the last tokens are drafts, to be verified. No plan behind has a chunk of this sequence before the
    result is there: only then is it known how many were right.
    """
    drafter: str = ""
    """Whose drafts they are."""

    @property
    def end(self) -> int:
        """How many tokens of the sequence are computed after this step, and known to be its own."""
        return self.start + len(self.tokens) - self.drafts


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


@dataclass(frozen=True, slots=True)
class Sampled:
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
