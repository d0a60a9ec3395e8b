"""Log-probabilities in the shapes of the two endpoints.

Knows tokens' names and both shapes; knows nothing of the rest of the answer.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterable
from typing import TYPE_CHECKING

import msgspec

from pagoda.types import TokenLogprob

if TYPE_CHECKING:
    from pagoda.text.tokenizer import Tokenizer


class ChatTop(msgspec.Struct):
    """One of the likeliest tokens at a place."""

    token: str
    logprob: float
    bytes: list[int]


class ChatToken(msgspec.Struct):
    """The chosen token at a place."""

    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[ChatTop]


class ChatLogprobs(msgspec.Struct):
    """`choices[].logprobs` of a chat."""

    content: list[ChatToken]
    refusal: None = None


class CompletionLogprobs(msgspec.Struct):
    """`choices[].logprobs` of a plain completion: parallel lists."""

    text_offset: list[int]
    token_logprobs: list[float]
    tokens: list[str]
    top_logprobs: list[dict[str, float]]


LOWEST = -9999.0
"""Stands for minus infinity, which JSON lacks; OpenAI's documentation gives the same number."""


def name_of(raw: bytes) -> str:
    """A token's text; bytes that are no whole characters are spelt out, as OpenAI does, so that names stay distinct."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)


def _finite(logprob: float) -> float:
    return max(logprob, LOWEST)


def chat_logprobs(tokenizer: Tokenizer, entries: Iterable[TokenLogprob]) -> ChatLogprobs:
    """Entries in the shape of a chat."""

    def top(token_id: int, logprob: float) -> ChatTop:
        raw = tokenizer.token_bytes(token_id)
        return ChatTop(name_of(raw), _finite(logprob), list(raw))

    content = []
    for entry in entries:
        chosen = top(entry.token_id, entry.logprob)
        likeliest = [top(token_id, logprob) for token_id, logprob in entry.top]
        content.append(ChatToken(chosen.token, chosen.logprob, chosen.bytes, likeliest))
    return ChatLogprobs(content)


class OffsetLogprobs:
    """Shapes one choice's entries for plain completions, counting where in the choice's text each token begins.

    The count is of whole characters: every token of a character that takes several has the offset of that character.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._offset = 0

    def shape(self, entries: Iterable[TokenLogprob]) -> CompletionLogprobs:
        """The next entries. `top_logprobs` always has the chosen token too, as OpenAI's has."""
        made = CompletionLogprobs([], [], [], [])
        for entry in entries:
            raw = self._tokenizer.token_bytes(entry.token_id)
            made.text_offset.append(self._offset)
            self._offset += len(self._decoder.decode(raw))
            made.tokens.append(name_of(raw))
            made.token_logprobs.append(_finite(entry.logprob))
            top = {name_of(self._tokenizer.token_bytes(each)): _finite(logprob) for each, logprob in entry.top}
            made.top_logprobs.append({name_of(raw): _finite(entry.logprob)} | top)
        return made
