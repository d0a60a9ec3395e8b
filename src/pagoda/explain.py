"""Why a request's prefix was found as far as it was, in the caller's own words.

Knows token bytes and what the engine says of a match (`CacheExplanation`), which never has another tenant's tokens. All
text shown is the request's own prompt, or what its tenant itself has kept.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from pagoda.types import CacheCause, CacheExplanation

AROUND = 48
"""Characters of the prompt shown before the place where the match ended, and tokens looked at for them."""
AFTER = 12
"""Tokens shown after it."""

WHY = {
    CacheCause.WHOLE: "all but the last token was found; that one is always computed",
    CacheCause.DIFFERENT: "what is kept goes on with another token here",
    CacheCause.NEVER_SEEN: "what is kept ends here",
    CacheCause.EVICTED: "more was kept, and has been evicted since",
    CacheCause.OFF: "this engine was started without its prefix cache",
}


class TokenBytes(Protocol):
    """The part of a tokenizer that is used here."""

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes of one token as it would be printed."""
        ...


@dataclass(frozen=True, slots=True)
class PrefixExplanation:
    """How much of a prompt was found in the cache, and why no more."""

    prompt_tokens: int
    matched_tokens: int
    """The match ended before this token of the prompt, counted from 0."""
    matched_characters: int
    """And at this character of the prompt as the model reads it, its template and control tokens written out."""
    pages: int
    """KV pages that were shared or copied rather than computed, of all groups together."""
    saved_s: float | None
    """Seconds that computing them takes, by the prompts of late; None if there was none to measure."""
    cause: CacheCause
    why: str
    """The cause in a sentence."""
    prompt: str
    """The prompt around that place, which is marked by `|`."""
    kept: str | None
    """The same with what this tenant has kept instead, if that goes on with other tokens."""


def explain_prefix(
    tokenizer: TokenBytes,
    prompt: Sequence[int],
    cache: CacheExplanation,
    pages_of: Callable[[int, int], tuple[int, ...]],
    prompt_token_s: float | None = None,
) -> PrefixExplanation:
    """Explain one request's match.

    Args:
        tokenizer: the model's.
        prompt: the request's token ids.
        cache: what the engine says of it.
        pages_of: `Capacity.pages_of` of the engine.
        prompt_token_s: seconds per token of a prompt, if known.
    """
    at = cache.matched
    before = _text(tokenizer, prompt[max(at - AROUND, 0) : at])
    cut = at > AROUND or len(before) > AROUND
    before = ("..." if cut else "") + before[-AROUND:] + "|"
    different = cache.cause is CacheCause.DIFFERENT
    return PrefixExplanation(
        prompt_tokens=len(prompt),
        matched_tokens=at,
        matched_characters=len(b"".join(map(tokenizer.token_bytes, prompt[:at])).decode(errors="ignore")),
        pages=sum(pages_of(at, at)),
        saved_s=None if prompt_token_s is None else round(at * prompt_token_s, 6),
        cause=cache.cause,
        why=WHY[cache.cause] if at or cache.cause is not CacheCause.NEVER_SEEN else "nothing that begins so is kept",
        prompt=before + _text(tokenizer, prompt[at : at + AFTER]) + ("..." if at + AFTER < len(prompt) else ""),
        kept=before + _text(tokenizer, cache.instead) if different and cache.instead else None,
    )


def _text(tokenizer: TokenBytes, tokens: Sequence[int]) -> str:
    return b"".join(map(tokenizer.token_bytes, tokens)).decode(errors="replace")
