"""What both endpoints' answers have in common: usage, the head of each object, finish reasons.

Knows the response's wire format; knows nothing of how the answers came about.
"""

from __future__ import annotations

import time
import uuid
from dataclasses import dataclass

import msgspec

from pagoda.completion import Usage
from pagoda.errors import PagodaError
from pagoda.explain import PrefixExplanation
from pagoda.server.errors import HttpFailure
from pagoda.types import FinishReason, TokenEvent


class PromptTokensDetails(msgspec.Struct):
    """`usage.prompt_tokens_details`."""

    cached_tokens: int


class CompletionTokensDetails(msgspec.Struct):
    """`usage.completion_tokens_details`: drafts of speculation."""

    accepted_prediction_tokens: int
    """Drafts that were right: tokens of the answer without a step of their own."""
    rejected_prediction_tokens: int
    """Drafts that were wrong; unlike OpenAI's they are no part of `completion_tokens`."""


class WireUsage(msgspec.Struct):
    """`usage`."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails


def wire_usage(usage: Usage) -> WireUsage:
    """Usage as OpenAI spells it."""
    prompt = PromptTokensDetails(usage.cached_tokens)
    completion = CompletionTokensDetails(usage.accepted_drafts, usage.rejected_drafts)
    return WireUsage(usage.prompt_tokens, usage.completion_tokens, usage.total_tokens, prompt, completion)


class Explain(msgspec.Struct):
    """`explain`: Pagoda's own, if it was asked for."""

    cache: list[PrefixExplanation | None]
    """One for each prompt, in their order; null for one that ended before it was admitted."""


@dataclass(frozen=True, slots=True)
class Head:
    """What every object of one answer repeats."""

    id: str
    model: str
    fingerprint: str
    created: int
    seed: int


def new_id(prefix: str) -> str:
    """A fresh answer id, such as `chatcmpl-5c1e...`."""
    return f"{prefix}-{uuid.uuid4().hex}"


def now() -> int:
    """Seconds of Unix time."""
    return int(time.time())


def finish_reason(reason: FinishReason) -> str:
    """The reason as OpenAI spells it.

    Raises:
        HttpFailure: 503, the sequence was cancelled although its client is still here: the server is stopping.
    """
    if reason is FinishReason.CANCELLED:
        raise HttpFailure(503, "the server cancelled this answer: it is shutting down", code="cancelled")
    if reason is FinishReason.ERROR:
        raise PagodaError("a failed sequence has no finish reason")
    return str(reason)


class UsageCount:
    """Adds up a stream's usage from the last events of its sequences."""

    def __init__(self, prompts: int) -> None:
        self._by_prompt = [Usage() for _ in range(prompts)]
        self._seen = [False] * prompts

    def add(self, place: int, event: TokenEvent) -> None:
        """Count the last event of a sequence of the prompt at `place`."""
        had = self._by_prompt[place]
        cached = min(had.cached_tokens, event.cached_tokens) if self._seen[place] else event.cached_tokens
        self._seen[place] = True
        self._by_prompt[place] = Usage(
            event.prompt_tokens,
            had.completion_tokens + event.completion_tokens,
            cached,
            had.accepted_drafts + event.accepted_drafts,
            had.rejected_drafts + event.rejected_drafts,
        )

    @property
    def total(self) -> Usage:
        """Over all prompts."""
        return sum(self._by_prompt, Usage())
