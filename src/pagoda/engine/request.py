"""`Sequence` and `RequestState`: what the engine keeps of a request under way.

Lengths, in tokens from the first of the prompt: `cached <= computed <= known <= limit`. Knows no pages and no text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pagoda.engine.ballot import Ballot
from pagoda.engine.beams import BeamSearch
from pagoda.plan import LAST, SequenceStart
from pagoda.types import CacheExplanation, GenerateRequest, TokenEvent

if TYPE_CHECKING:
    from pagoda.engine.forecast import Outlook
    from pagoda.engine.output import OutputText
    from pagoda.engine.repetition import Loop

Sink = Callable[[TokenEvent], None]
"""Takes events on the engine's thread: quick, and never waits."""
Wake = Callable[[], None]
"""Called once after the events of a step have gone to their sinks."""


@dataclass(slots=True, eq=False)
class Sequence:
    """One line of tokens: a request's prompt and one choice's output."""

    id: int
    """Unique for the engine's lifetime, and ascending in order of arrival: the lower, the older."""
    state: RequestState
    prompt: tuple[int, ...]
    choice: int
    limit: int
    """Most tokens it may come to: prompt and max_tokens."""
    output: list[int] = field(default_factory=list)
    """Tokens generated whose values have arrived."""
    pending: int = 0
    """Tokens that plans in flight will produce; of one with drafts, the one that is certain."""
    drafting: int = 0
    """Drafts in flight."""
    accepted: int = 0
    """Drafts that were right."""
    rejected: int = 0
    computed: int = 0
    """Tokens whose KV is computed once the plans handed over have run."""
    cached: int = 0
    """Tokens whose KV was found in the cache when it was last admitted."""
    holds_pages: bool = False
    sought: bool = False
    """Whether it was looked for on disk since it last held pages."""
    started: bool = False
    """Whether the runner has met it."""
    preemptions: int = 0
    rank: float = 0.0
    """Its place among its tenant's (`urgency`): the lower, the more urgent."""
    text: OutputText | None = None
    """From its first token on."""
    loop: Loop | None = None
    """From its first token on, if loops are to be noticed."""
    planned_at: float | None = None
    first_token_at: float | None = None
    last_token_at: float | None = None

    @property
    def values(self) -> int:
        """Tokens whose values have arrived."""
        return len(self.prompt) + len(self.output)

    @property
    def known(self) -> int:
        """Tokens that exist, in flight or here."""
        return len(self.prompt) + len(self.output) + self.pending

    @property
    def parked(self) -> bool:
        """Whether it is a beam whose next token its request decides, once all beams have their candidates."""
        return self.pending > 0 and self.state.beams is not None

    @property
    def wants(self) -> bool:
        """Whether it has tokens to compute, now or later, without anyone's help."""
        return self.known < self.limit and not self.parked

    @property
    def verified(self) -> int:
        """Tokens computed that others may find: of a beam, which may die any moment, the prompt's alone."""
        verified = min(self.computed, self.values)
        return verified if self.state.beams is None else min(verified, len(self.prompt))

    @property
    def key(self) -> str:
        """Under which its prefixes are kept."""
        return self.state.request.tenant

    @property
    def fork_point(self) -> int:
        """Where the choices of one request part: all but the prompt's last token, whose logits each samples anew."""
        return len(self.prompt) - 1

    @property
    def speculates(self) -> bool:
        """Whether the step may verify drafts of it: it has an output, is no beam, and the client allows it."""
        return self.known > len(self.prompt) and self.state.request.speculate and self.state.beams is None

    def due(self) -> int:
        """How many tokens can be computed now. 0: its last is in flight, or it must wait for values in flight."""
        if self.drafting:
            return 0
        values = len(self.prompt) + len(self.output)
        known = values + self.pending
        if known >= self.limit or self.parked:
            return 0
        if self.computed < values:
            return values - self.computed
        return 1 if self.computed == known - 1 else 0

    def tokens(self, start: int, end: int) -> tuple[int, ...]:
        """Tokens `start` to `end` - 1; (LAST,) for the one in flight."""
        cut = len(self.prompt)
        if start < cut:
            return self.prompt[start:end] + tuple(self.output[: max(end - cut, 0)])
        return tuple(self.output[start - cut : end - cut]) or (LAST,)

    def start(self) -> SequenceStart:
        """How it is made known to the runner."""
        return SequenceStart(self.id, self.prompt, self.state.request.params, self.choice, self.state.candidates)

    def arrived(self, tokens: int) -> int:
        """A plan gave so many tokens, which are about to join the output; how many drafts of it were right. Of a beam
        the token stays pending: which one it is, if any, its request decides.
        """
        right, asked, self.drafting = tokens - 1, self.drafting, 0
        self.pending -= self.state.beams is None
        self.accepted += right
        self.rejected += asked - right
        if self.holds_pages:
            self.computed += right
        return right

    def check(self) -> None:
        """Assert the order of the lengths, and that no more is in flight than was planned."""
        assert 0 <= self.cached <= self.computed <= self.known <= self.limit, f"lengths of {self}"
        assert self.holds_pages or self.computed == 0, f"computed without pages: {self}"
        assert self.pending >= 0, f"more tokens than planned: {self}"
        assert self.known + self.drafting <= self.limit, f"drafts past the end: {self}"


class RequestState:
    """A request under way: its sequences, and where their events go."""

    __slots__ = (
        "ballot", "beams", "cache", "candidates", "outlook", "request", "sequences", "sink", "stop_ids", "unfinished",
        "wake",
    )  # fmt: skip

    def __init__(
        self,
        request: GenerateRequest,
        sink: Sink,
        ids: Iterator[int],
        wake: Wake | None = None,
        stop_ids: frozenset[int] = frozenset(),
        max_model_len: int | None = None,
    ) -> None:
        params = request.params
        assert params.max_tokens is not None, "max_tokens is resolved by admission.validate"
        limit = len(request.prompt) + params.max_tokens
        if max_model_len is not None:
            limit = min(limit, max_model_len)
        self.request = request
        self.sink = sink
        self.wake = wake
        self.stop_ids = stop_ids.union(params.stop_token_ids)
        self.sequences = [Sequence(next(ids), self, request.prompt, i, limit) for i in range(params.sequences)]
        self.beams: BeamSearch | None = None
        """If it is beam search: the sequences are its slots, and those without a beam hold nothing."""
        self.ballot: Ballot | None = None
        """If it answers with the best of its sequences."""
        self.candidates = -1
        """Likeliest tokens wanted with each sample, whatever the parameters say."""
        if params.beams is not None:
            self.candidates = params.beams * max(2, 1 + len(self.stop_ids))
            most = limit - len(request.prompt)
            self.beams = BeamSearch(
                params.beams, most, self.candidates, params.length_penalty, params.early_stopping, params.logprobs
            )
        elif params.held_back:
            self.candidates = 0
            self.ballot = Ballot(params.sequences, params.n, params.logprobs is not None)
        self.cache: CacheExplanation | None = None
        """What the cache had of the prompt when the first of its sequences was admitted."""
        self.unfinished = set(range(params.n))
        """Choices whose last event has not been sent."""
        self.outlook: Outlook | None = None
        """What was predicted when it was taken on."""
