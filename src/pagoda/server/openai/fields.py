"""The fields that both endpoints share, those that change nothing, and how bad ones are named.

Knows the request's wire format; knows nothing of tokens or of the engine.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Annotated, Any, Literal, TypeVar

import msgspec

from pagoda.errors import InvalidRequest, UnsupportedField
from pagoda.types import MAX_SEED, SamplingParams, Slo

Count = Annotated[int, msgspec.Meta(ge=1)]


class StreamOptions(msgspec.Struct, forbid_unknown_fields=True):
    """`stream_options`."""

    include_usage: bool | None = None
    include_obfuscation: bool | None = None
    """Only false: Pagoda adds no padding against eavesdroppers; TLS belongs to what stands before it."""


class SloFields(msgspec.Struct, forbid_unknown_fields=True):
    """`slo`."""

    ttft_ms: float | None = None
    tpot_ms: float | None = None
    on_miss: Literal["refuse", "serve"] | None = None


class SharedFields(msgspec.Struct, kw_only=True):
    """What chat and plain completions have in common. None is the server's default."""

    model: str
    max_tokens: Count | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    n: Count | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    repetition_stop: int | None = None
    slo: SloFields | None = None
    priority: int | None = None
    speculation: Literal["auto", "off"] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    explain: bool | None = None

    @property
    def include_usage(self) -> bool:
        """Whether a stream ends with a chunk of usage."""
        return self.stream_options is not None and bool(self.stream_options.include_usage)

    @property
    def targets(self) -> Slo:
        """The latency asked for.

        Raises:
            InvalidRequest: a target that is not a positive number.
        """
        asked = self.slo or SloFields()
        return Slo(asked.ttft_ms, asked.tpot_ms, asked.on_miss == "serve")

    def sampling(self, defaults: SamplingParams, logprobs: int | None, max_tokens: int | None) -> SamplingParams:
        """The parameters for the engine: those given, and `defaults` for the others.

        A negative seed, which OpenAI's 64 signed bits allow, stands for the same 64 bits read as unsigned.

        Raises:
            InvalidRequest: a value is out of its range.
        """
        given: dict[str, Any] = {
            "max_tokens": max_tokens,
            "temperature": self.temperature,
            "top_p": self.top_p,
            "top_k": self.top_k,
            "min_p": self.min_p,
            "seed": _unsigned(self.seed),
            "n": self.n,
            "stop": (self.stop,) if isinstance(self.stop, str) else self.stop and tuple(self.stop),
            "stop_token_ids": self.stop_token_ids and tuple(self.stop_token_ids),
            "ignore_eos": self.ignore_eos,
            "presence_penalty": self.presence_penalty,
            "frequency_penalty": self.frequency_penalty,
            "repetition_penalty": self.repetition_penalty,
            "repetition_stop": self.repetition_stop,
            "logprobs": logprobs,
        }
        return replace(defaults, **{name: value for name, value in given.items() if value is not None})


def _unsigned(seed: int | None) -> int | None:
    return seed & MAX_SEED if seed is not None and -(2**63) <= seed < 0 else seed


Neutral = Mapping[str, Callable[[Any], bool]]
"""Fields that Pagoda does not have, each with the values that change nothing and are therefore accepted."""


def _is(*values: Any) -> Callable[[Any], bool]:
    return lambda value: any(type(value) is type(each) and value == each for each in values)


def _text(value: Any) -> bool:
    return isinstance(value, str)


NEUTRAL: Neutral = {
    "logit_bias": _is({}),
    "metadata": lambda value: isinstance(value, dict),
    "prompt_cache_key": _text,  # a hint: a prefix is shared whenever its tokens are equal
    "prompt_cache_retention": _is("in_memory"),
    "response_format": _is({"type": "text"}),
    "safety_identifier": _text,
    "service_tier": _is("auto", "default"),
    "store": _is(False),
    "user": _text,
}

NEUTRAL_CHAT: Neutral = {
    **NEUTRAL,
    "function_call": _is("none", "auto"),  # without functions, auto is none
    "functions": _is([]),
    "modalities": _is(["text"]),
    "parallel_tool_calls": lambda value: isinstance(value, bool),
    "reasoning_effort": _is("none"),
    "tool_choice": _is("none", "auto"),
    "tools": _is([]),
    "verbosity": _is("medium"),
}

NEUTRAL_COMPLETIONS: Neutral = {
    **NEUTRAL,
    "echo": _is(False),
    "suffix": _is(""),
}

Fields = TypeVar("Fields", bound=SharedFields)


def decode(body: bytes, kind: type[Fields], neutral: Neutral) -> Fields:
    """The body as `kind`; nulls count as absent.

    Raises:
        UnsupportedField: a field that is neither known nor neutral; it is named.
        InvalidRequest: not JSON, or a field of the wrong type.
    """
    try:
        raw = msgspec.json.decode(body)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"the body is not valid JSON: {error}") from None
    if not isinstance(raw, dict):
        raise InvalidRequest(f"the body must be a JSON object, got {shown(raw)}")
    sent = {name: value for name, value in raw.items() if value is not None}
    for name, value in sent.items():
        if name in kind.__struct_fields__ or (name in neutral and neutral[name](value)):
            continue
        what = f"{name}: {shown(value)}" if name in neutral else f"the field {shown(name)}"
        raise UnsupportedField(f"Pagoda does not support {what}; leave it out", name)
    fields = convert(sent, kind)
    if fields.stream_options is not None:
        if not fields.stream:
            raise InvalidRequest("stream_options is only for answers with stream: true", "stream_options")
        if fields.stream_options.include_obfuscation:
            param = "stream_options.include_obfuscation"
            raise UnsupportedField(f"Pagoda does not support {param}; leave it out", param)
    return fields


Kind = TypeVar("Kind")


def convert(raw: Any, kind: type[Kind], where: str = "") -> Kind:
    """`raw` as `kind`.

    Raises:
        UnsupportedField: an object has a field that its kind does not know.
        InvalidRequest: a value of the wrong type. `param` is the path, below `where`.
    """
    try:
        return msgspec.convert(raw, kind)
    except msgspec.ValidationError as error:
        reason, _, path = str(error).partition(" - at `$")
        path = path.removesuffix("`")
        param = (where + path).lstrip(".")
        if missing := re.search(r"missing required field `(\w+)`", reason):
            param = f"{param}.{missing[1]}".lstrip(".")
            raise InvalidRequest(f"{param} is missing", param) from None
        if unknown := re.search(r"unknown field `(.*)`", reason):
            param = f"{param}.{unknown[1]}".lstrip(".")
            raise UnsupportedField(f"Pagoda does not support {param}; leave it out", param) from None
        wanted = reason.replace("`", "").replace(" | null", "")
        raise InvalidRequest(f"{param}: {wanted[:1].lower()}{wanted[1:]}{_found(raw, path)}", param or None) from None


def _found(raw: Any, path: str) -> str:
    """What stands at a msgspec path, for a message; nothing where the path cannot be followed."""
    value = raw
    for name, place in re.findall(r"\.(\w+)|\[(\d+)\]", path):
        try:
            value = value[name] if name else value[int(place)]
        except (KeyError, IndexError, TypeError):
            return ""
    return f": {shown(value)}" if path else ""


def shown(value: Any) -> str:
    """A value for an error message: as JSON, and short."""
    try:
        text = msgspec.json.encode(value).decode()
    except (TypeError, ValueError, UnicodeEncodeError):
        text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
