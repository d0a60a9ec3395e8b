"""What a beginning shares with all that may follow on it, in tokens: that much of it can be computed ahead and pinned.

Where a text ends, what follows may join its last characters in one token, and a chat template may write what depends on
the next message. So each beginning is encoded with many unlike continuations, and what all of them share is kept.
Knows a tokenizer's two ways to encode a prompt; nothing of pins.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from pagoda.errors import InvalidRequest, PromptTooLong

WORDS = ("a", "The", "Zoé", "7", "(", "'s", '"', "<", "中", "é", " x", "\n", "\n\nx", "\t", "")
"""Beginnings of a message that share no first character, nor any token."""
BREAKS = (" a", " The", "\n", "\n\nx", ".", ",", " 7")
"""What may follow a text that is not to be cut within a word."""
SLACK = 64
"""Tokens by which one prompt may be longer than what it shares with the others."""
FOLLOWERS = {"system": "user", "developer": "user", "assistant": "user", "user": "assistant", "tool": "assistant"}
"""Whose turn comes next."""


class Encoder(Protocol):
    """The part of a tokenizer that is used here."""

    def encode_prompt(self, text: str) -> tuple[int, ...]:
        """Token ids of a prompt to be continued."""
        ...

    def encode_chat(
        self, messages: Sequence[Mapping[str, object]], *, add_generation_prompt: bool = True
    ) -> tuple[int, ...]:
        """Token ids of a conversation."""
        ...


def chat_opening(
    tokenizer: Encoder, messages: Sequence[Mapping[str, object]], most: int | None = None
) -> tuple[int, ...]:
    """The tokens with which every conversation begins that begins with these messages.

    Args:
        tokenizer: the model's.
        messages: at least one.
        most: tokens that the context holds; what is much longer is refused before much is done.

    Raises:
        InvalidRequest: messages that are malformed or that the model's template refuses, or that share nothing with
            what follows on them.
        PromptTooLong: far more than `most` tokens.
    """
    whole, refusal = _accepted(tokenizer, messages)
    role = messages[-1].get("role")
    follower = FOLLOWERS.get(role, "user") if isinstance(role, str) else "user"
    prompts = [] if whole is None or follower == "user" else [whole]
    for content in WORDS:
        _check_length(prompts[:1], most, "messages")
        prompt, why = _accepted(tokenizer, [*messages, {"role": follower, "content": content}])
        refusal = refusal or why
        if prompt is not None:
            prompts.append(prompt)
    if not prompts:
        raise refusal or InvalidRequest("the model's chat template takes nothing after these messages", "messages")
    return _checked(shared_start(prompts), "messages")


def text_opening(tokenizer: Encoder, text: str, most: int | None = None) -> tuple[int, ...]:
    """The tokens with which every prompt begins that begins with this text and goes on after a word's end.

    Raises:
        InvalidRequest: the text is no Unicode, or shares nothing with what follows on it.
        PromptTooLong: far more than `most` tokens.
    """
    prompts = [tokenizer.encode_prompt(text)]
    _check_length(prompts, most, "text")
    return _checked(shared_start([*prompts, *(tokenizer.encode_prompt(text + more) for more in BREAKS)]), "text")


def shared_start(prompts: Iterable[Sequence[int]]) -> tuple[int, ...]:
    """The tokens with which all of these begin."""
    first, *rest = map(tuple, prompts)
    for prompt in rest:
        size = min(len(first), len(prompt))
        first = first[: next((at for at in range(size) if first[at] != prompt[at]), size)]
    return first


def _accepted(
    tokenizer: Encoder, messages: Sequence[Mapping[str, object]]
) -> tuple[tuple[int, ...] | None, InvalidRequest | None]:
    """The prompt, or why there is none: a template may want certain turns in a certain order."""
    try:
        return tokenizer.encode_chat(messages), None
    except InvalidRequest as error:
        return None, error


def _check_length(prompts: Sequence[Sequence[int]], most: int | None, field: str) -> None:
    """Refuse what would be tokenised many times over, and not fit in the end."""
    for prompt in prompts:
        if most is not None and len(prompt) > most + SLACK:
            raise PromptTooLong(
                f"{field} has about {len(prompt)} tokens and the context holds {most}, output included: shorten it",
                field,
            )


def _checked(tokens: tuple[int, ...], field: str) -> tuple[int, ...]:
    if not tokens:
        raise InvalidRequest(f"{field} shares no token with what may follow on it: give more of it", field)
    return tokens
