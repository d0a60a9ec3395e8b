"""`Completion`: a whole answer, gathered from a request's events.

Knows only requests and events: neither the engine that made them nor the wire that carries them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from pagoda.errors import EngineDied, PagodaError
from pagoda.types import CacheExplanation, FinishReason, GenerateRequest, Timings, TokenEvent, TokenLogprob


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens read and written; a prompt counts once, however many choices were made from it."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    """Prompt tokens whose KV was found in the cache."""
    accepted_drafts: int = 0
    rejected_drafts: int = 0

    @property
    def total_tokens(self) -> int:
        """Prompt and completion together."""
        return self.prompt_tokens + self.completion_tokens

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            self.prompt_tokens + other.prompt_tokens,
            self.completion_tokens + other.completion_tokens,
            self.cached_tokens + other.cached_tokens,
            self.accepted_drafts + other.accepted_drafts,
            self.rejected_drafts + other.rejected_drafts,
        )


@dataclass(frozen=True, slots=True)
class Choice:
    """One of the `n` answers to a prompt."""

    index: int
    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...]
    """One for each token, if they were asked for; else empty."""
    finish_reason: FinishReason
    completion_tokens: int
    cached_tokens: int
    timings: Timings | None
    cache: CacheExplanation | None = None
    """What the cache had of the prompt."""
    accepted_drafts: int = 0
    """Drafts that were right: tokens that took no step of their own."""
    rejected_drafts: int = 0

    @property
    def tpot(self) -> float | None:
        """Mean seconds per output token after the first; None where there is only one."""
        if self.timings is None or self.completion_tokens < 2:
            return None
        return (self.timings.total - self.timings.first_token) / (self.completion_tokens - 1)


@dataclass(frozen=True, slots=True)
class Completion:
    """All the answers to one prompt, and what it takes to get them again."""

    request_id: str
    prompt: tuple[int, ...]
    choices: tuple[Choice, ...]
    """In order of their index."""
    seed: int
    """The seed used, given or drawn."""
    system_fingerprint: str
    """Of weights, formats and arithmetic: the same fingerprint, prompt, parameters and seed give the same tokens."""

    @property
    def text(self) -> str:
        """The first choice's text."""
        return self.choices[0].text

    @property
    def token_ids(self) -> tuple[int, ...]:
        """The first choice's tokens."""
        return self.choices[0].token_ids

    @property
    def finish_reason(self) -> FinishReason:
        """Why the first choice ended."""
        return self.choices[0].finish_reason

    @property
    def usage(self) -> Usage:
        """Tokens over all choices; of the cache, what every choice had."""
        return Usage(
            len(self.prompt),
            sum(choice.completion_tokens for choice in self.choices),
            min((choice.cached_tokens for choice in self.choices), default=0),
            sum(choice.accepted_drafts for choice in self.choices),
            sum(choice.rejected_drafts for choice in self.choices),
        )


@dataclass(slots=True)
class _Parts:
    text: list[str] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    last: TokenEvent | None = None


class Gather:
    """Adds up one request's events; `done` once each of its sequences has ended."""

    def __init__(self, request: GenerateRequest) -> None:
        self.request = request
        self._parts = [_Parts() for _ in range(request.params.n)]
        self._open = request.params.n

    @property
    def done(self) -> bool:
        """Whether every choice has ended."""
        return self._open == 0

    def add(self, event: TokenEvent) -> None:
        """Take one event of this request.

        Raises:
            PagodaError: the event says that the sequence failed.
        """
        raise_failure(event)
        parts = self._parts[event.index]
        parts.text.append(event.text)
        parts.token_ids.extend(event.token_ids)
        parts.logprobs.extend(event.logprobs)
        if event.finish is not None:
            parts.last = event
            self._open -= 1

    def completion(self, fingerprint: str) -> Completion:
        """The whole answer; to be called once `done`."""
        seed = self.request.params.seed
        assert seed is not None, "admission resolves the seed"
        choices = tuple(_choice(index, parts) for index, parts in enumerate(self._parts))
        return Completion(self.request.id, self.request.prompt, choices, seed, fingerprint)

    def check(self) -> None:
        """Assert that the count of open choices agrees with the last events kept."""
        assert self._open == sum(parts.last is None for parts in self._parts)


def _choice(index: int, parts: _Parts) -> Choice:
    last = parts.last
    assert last is not None, "completion() before done"
    assert last.finish is not None
    return Choice(
        index=index,
        text="".join(parts.text),
        token_ids=tuple(parts.token_ids),
        logprobs=tuple(parts.logprobs),
        finish_reason=last.finish,
        completion_tokens=last.completion_tokens,
        cached_tokens=last.cached_tokens,
        timings=last.timings,
        cache=last.cache,
        accepted_drafts=last.accepted_drafts,
        rejected_drafts=last.rejected_drafts,
    )


def raise_failure(event: TokenEvent) -> None:
    """Raise the error that an event carries, if it ended with one."""
    if event.finish is FinishReason.ERROR:
        error: PagodaError = event.error or EngineDied("the engine ended the request without saying why")
        raise error


def gather(requests: Iterable[GenerateRequest], events: Iterable[TokenEvent], fingerprint: str) -> list[Completion]:
    """The completions of several requests, in their order, from the mixed events of them all."""
    gathers = {request.id: Gather(request) for request in requests}
    for event in events:
        gathers[event.request_id].add(event)
    return [each.completion(fingerprint) for each in gathers.values()]
