"""`Outline`: a plan being filled. Lengths of its sequences move only when it is closed."""

from __future__ import annotations

from pagoda.cache.tables import Extension, Tables
from pagoda.engine.request import Sequence
from pagoda.plan import Chunk, PageCopy, PageMove, SequenceStart, StepPlan


class Outline:
    """The chunks placed so far, and what is left of the step."""

    __slots__ = ("chunks", "copies", "kept", "loads", "placed", "prompt_rows", "rows", "saves", "short", "starts")

    def __init__(self, rows: int) -> None:
        self.rows = rows
        """Rows left."""
        self.kept = 0
        """Of them, those kept for sequences with one token due."""
        self.prompt_rows = 0
        """Rows taken by prompts."""
        self.short = False
        """Whether pages ran out."""
        self.chunks: list[Chunk] = []
        self.placed: dict[int, Sequence] = {}
        """Sequences with a chunk in this step: they cannot lose their pages now."""
        self.starts: list[SequenceStart] = []
        self.copies: list[PageCopy] = []
        self.loads: tuple[PageMove, ...] = ()
        self.saves: tuple[PageMove, ...] = ()

    def add(
        self,
        sequence: Sequence,
        size: int,
        extension: Extension,
        pages: Tables,
        drafter: str = "",
        drafts: tuple[int, ...] = (),
        parents: tuple[int, ...] = (),
        paths: tuple[Tables, ...] = (),
    ) -> None:
        """Place the next `size` tokens of a sequence and some drafts, all of which its pages and paths cover."""
        start, end = sequence.computed, sequence.computed + size
        tokens = sequence.tokens(start, end) + drafts
        last = end == sequence.known
        self.chunks.append(Chunk(sequence.id, start, tokens, pages, last, len(drafts), drafter, parents, paths))
        self.placed[sequence.id] = sequence
        self.rows -= len(tokens)
        if extension.copies:
            self.copies.extend(extension.copies)
        if not sequence.started:
            sequence.started = True
            self.starts.append(sequence.start())

    def add_one(self, sequence: Sequence, pages: Tables) -> None:
        """Place the one token that a sequence that has started has due; its pages cover it."""
        start = sequence.computed
        known = sequence.known
        self.chunks.append(Chunk(sequence.id, start, sequence.tokens(start, start + 1), pages, start + 1 == known))
        self.placed[sequence.id] = sequence
        self.rows -= 1

    @property
    def empty(self) -> bool:
        """Whether there is nothing to do."""
        return not (self.chunks or self.loads or self.saves)

    def close(self, number: int, ends: tuple[int, ...]) -> StepPlan:
        """The plan; from here on its tokens count as computed, and the ones it samples as known."""
        for chunk, sequence in zip(self.chunks, self.placed.values(), strict=True):
            sequence.computed = chunk.start + len(chunk.tokens) - chunk.drafts
            sequence.pending += chunk.samples
            sequence.drafting = chunk.drafts
        return StepPlan(
            number, tuple(self.chunks), tuple(self.starts), tuple(self.copies), ends, self.saves, self.loads
        )
