"""`POST /v1/chat/completions`: its body, and its answers.

Knows OpenAI's chat format; the template belongs to `text`, the tokens to the engine.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType
from starlette.requests import Request
from starlette.responses import Response

from pagoda.completion import Completion
from pagoda.errors import InvalidRequest
from pagoda.server.desk import Desk
from pagoda.server.openai.answer import Call, answer
from pagoda.server.openai.fields import NEUTRAL_CHAT, Count, SharedFields, decode
from pagoda.server.openai.logprobs import ChatLogprobs, chat_logprobs
from pagoda.server.openai.response import Explain, Head, UsageCount, WireUsage, finish_reason, wire_usage
from pagoda.types import MAX_LOGPROBS, TokenEvent


class ChatFields(SharedFields, kw_only=True):
    """The body."""

    messages: list[dict[str, Any]]
    max_completion_tokens: Count | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None


class Message(msgspec.Struct):
    """`choices[].message`."""

    content: str
    role: str = "assistant"
    refusal: None = None


class ChatChoice(msgspec.Struct):
    """`choices[]` of a whole answer."""

    index: int
    message: Message
    logprobs: ChatLogprobs | None
    finish_reason: str


class ChatAnswer(msgspec.Struct):
    """The whole answer. `seed` is Pagoda's own: the seed used, given or drawn."""

    id: str
    created: int
    model: str
    choices: list[ChatChoice]
    usage: WireUsage
    system_fingerprint: str
    seed: int
    explain: Explain | UnsetType = UNSET
    object: str = "chat.completion"


class Delta(msgspec.Struct):
    """`choices[].delta`."""

    role: str | UnsetType = UNSET
    content: str | UnsetType = UNSET


class ChunkChoice(msgspec.Struct):
    """`choices[]` of a chunk."""

    index: int
    delta: Delta
    logprobs: ChatLogprobs | None = None
    finish_reason: str | None = None


class ChatChunk(msgspec.Struct):
    """One event of a stream."""

    id: str
    created: int
    model: str
    choices: list[ChunkChoice]
    system_fingerprint: str
    seed: int
    usage: WireUsage | UnsetType | None = UNSET
    explain: Explain | UnsetType = UNSET
    object: str = "chat.completion.chunk"


async def chat_completions(request: Request) -> Response:
    """The route."""
    return await answer(request, parse)


def parse(body: bytes, desk: Desk) -> Call:
    """The body's meaning.

    Raises:
        InvalidRequest: `param` names the field.
    """
    fields = decode(body, ChatFields, NEUTRAL_CHAT)
    messages = [_message(each) for each in fields.messages]
    params = fields.sampling(desk.defaults, _logprobs(fields), _max_tokens(fields))
    return Call(
        model=fields.model,
        params=params,
        stream=bool(fields.stream),
        include_usage=fields.include_usage,
        explain=bool(fields.explain),
        seed=fields.seed,
        slo=fields.targets,
        priority=fields.priority or 0,
        speculate=fields.speculation != "off",
        repetition_stop=fields.repetition_stop,
        prefix="chatcmpl",
        prompt_field="messages",
        encode=partial(_encode, desk, messages),
        shape=partial(ChatShape, logprobs=bool(fields.logprobs), include_usage=fields.include_usage),
    )


def _encode(desk: Desk, messages: Sequence[dict[str, Any]]) -> list[Sequence[int]]:
    parts = [part for message in messages for part in text_parts(message.get("content"))]
    desk.refuse_hopeless(sum(len(part) for part in parts if isinstance(part, str)))
    return [desk.tokenizer.encode_chat(messages)]


def text_parts(content: Any) -> list[Any]:
    """The texts of a message's content, whatever else it may hold."""
    if isinstance(content, list):
        return [part.get("text") for part in content if isinstance(part, dict)]
    return [content]


def _max_tokens(fields: ChatFields) -> int | None:
    old, new = fields.max_tokens, fields.max_completion_tokens
    if old is not None and new is not None and old != new:
        raise InvalidRequest(f"max_tokens is {old} and max_completion_tokens is {new}: send one of them", "max_tokens")
    return old if new is None else new


def _logprobs(fields: ChatFields) -> int | None:
    top = fields.top_logprobs
    if top is not None and not 0 <= top <= MAX_LOGPROBS:
        raise InvalidRequest(f"top_logprobs must be 0 to {MAX_LOGPROBS}, got {top}", "top_logprobs")
    if fields.logprobs:
        return top or 0
    if top:
        raise InvalidRequest("top_logprobs needs logprobs: true", "top_logprobs")
    return None


def _message(raw: dict[str, Any]) -> dict[str, Any]:
    """A message without what changes nothing; the rest of it is for `text` to judge."""
    kept = {name: value for name, value in raw.items() if value is not None and not _echoed(name, value)}
    if kept.get("role") == "developer":
        kept["role"] = "system"
    return kept


def _echoed(name: str, value: Any) -> bool:
    """Whether a client sends this back unread with an assistant's earlier message."""
    return name in ("annotations", "tool_calls") and value == []


class ChatShape:
    """Writes one chat's answer. The first chunk of a choice carries the role; the last has nothing but the reason."""

    def __init__(self, head: Head, desk: Desk, *, logprobs: bool, include_usage: bool) -> None:
        self._head, self._tokenizer, self._logprobs = head, desk.tokenizer, logprobs
        self._usage: UnsetType | None = None if include_usage else UNSET
        self._begun: set[int] = set()

    def chunks(self, place: int, event: TokenEvent) -> Iterable[ChatChunk]:  # noqa: ARG002
        """At most two: what is new, and the end. An event with no news for the client gives none."""
        first = event.index not in self._begun
        told = self._logprobs and event.logprobs
        if first or event.text or told:
            self._begun.add(event.index)
            delta = Delta("assistant" if first else UNSET, event.text)
            logprobs = chat_logprobs(self._tokenizer, event.logprobs) if told else None
            yield self._chunk([ChunkChoice(event.index, delta, logprobs)])
        if event.finish is not None:
            yield self._chunk([ChunkChoice(event.index, Delta(), None, finish_reason(event.finish))])

    def _chunk(
        self,
        choices: list[ChunkChoice],
        usage: WireUsage | UnsetType | None = UNSET,
        explain: Explain | UnsetType = UNSET,
    ) -> ChatChunk:
        head, told = self._head, self._usage if usage is UNSET else usage
        return ChatChunk(head.id, head.created, head.model, choices, head.fingerprint, head.seed, told, explain)

    def end_chunk(self, usage: UsageCount | None, explain: Explain | UnsetType) -> ChatChunk:
        """The chunk with no choices."""
        return self._chunk([], UNSET if usage is None else wire_usage(usage.total), explain)

    def whole(self, completions: Sequence[Completion], explain: Explain | UnsetType) -> ChatAnswer:
        """The whole answer: a chat has one prompt."""
        head, choices = self._head, []
        for choice in completions[0].choices:
            logprobs = chat_logprobs(self._tokenizer, choice.logprobs) if self._logprobs else None
            reason = finish_reason(choice.finish_reason)
            choices.append(ChatChoice(choice.index, Message(choice.text), logprobs, reason))
        usage = wire_usage(completions[0].usage)
        return ChatAnswer(head.id, head.created, head.model, choices, usage, head.fingerprint, head.seed, explain)
