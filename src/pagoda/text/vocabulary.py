"""The vocabulary and its flags, read from a model file's metadata and checked once.

Knows the GGUF keys `tokenizer.ggml.*` and what their values mean. Does not know how text is cut into tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import TypeVar

from pagoda.errors import ModelFileError

PREFIX = "tokenizer.ggml."
END_TOKENS = frozenset(
    {
        "</s>",
        "<|im_end|>",
        "<|endoftext|>",
        "<|end_of_text|>",
        "<|eot_id|>",
        "<|eom_id|>",
        "<|eot|>",
        "<|eom|>",
        "<|end|>",
        "<|return|>",
        "<|call|>",
        "<eos>",
        "<end_of_turn>",
        "<end_of_utterance>",
        "<turn|>",
        "<｜end▁of▁sentence｜>",
        "<|END_OF_TURN_TOKEN|>",
        "<|endofturn|>",
        "<EOT>",
        "[EOT]",
    }
)
"""Control tokens that end a turn or a text, whatever the metadata says of them."""
_Number = TypeVar("_Number", int, float)


class Kind(IntEnum):
    """What a token is: the values of `tokenizer.ggml.token_type`."""

    NORMAL = 1
    UNKNOWN = 2  # stands for what the vocabulary cannot spell
    CONTROL = 3  # has no text; users cannot type it
    USER_DEFINED = 4  # matched whole wherever its text occurs, before anything else
    UNUSED = 5
    BYTE = 6  # one byte, spelled <0x0A>


SILENT = frozenset({Kind.UNKNOWN, Kind.CONTROL, Kind.UNUSED})
"""Kinds that add nothing to the output's text."""


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The tokens of a model, in the order of their ids."""

    model: str
    """`tokenizer.ggml.model`: the algorithm."""
    pre: str
    """`tokenizer.ggml.pre`: how text is cut into words first; empty if the file does not say."""
    tokens: Sequence[str]
    kinds: Sequence[int]
    """Of each token, a `Kind`."""
    scores: Sequence[float]
    """Of each token, or empty."""
    merges: Sequence[str]
    """Pairs, best first, each two spellings with a blank between; or empty."""
    control: Mapping[str, int]
    """Text and id of the tokens that users cannot type."""
    defined: Mapping[str, int]
    """Text and id of the tokens that are matched whole in any text."""
    bos: int | None
    eos: int | None
    unknown: int | None
    add_bos: bool | None
    """Whether a prompt begins with `bos`; None if the file does not say."""
    add_eos: bool
    space_prefix: bool | None
    """Whether a blank goes before the text; None if the file does not say."""
    stop_ids: frozenset[int]
    charsmap: bytes = b""
    """`CharsMap`'s, of unigram vocabularies; empty changes nothing."""
    squeeze_blanks: bool = False
    """Whether blanks at both ends go, and of several in a row one stays."""
    lowercase: bool | None = None
    """Whether capitals are made small first, of WordPiece vocabularies; None if the file does not say."""

    def named(self, token_id: int | None) -> str:
        """The spelling of a token, or an empty string for None."""
        return "" if token_id is None else self.tokens[token_id]


def read_vocabulary(metadata: Mapping[str, object]) -> Vocabulary:
    """Read and check the vocabulary.

    Raises:
        ModelFileError: a key is missing, of the wrong type, or contradicts another.
    """
    tokens = _strings(metadata, "tokens", required=True)
    kinds = list(_numbers(metadata, "token_type", int, len(tokens))) or [Kind.NORMAL] * len(tokens)
    ids = {name: _token_id(metadata, name, len(tokens)) for name in ("bos", "eos", "eot", "eom", "unknown")}
    for name in ("bos", "eos", "eot", "eom"):
        token_id = ids[name]
        if token_id is not None and kinds[token_id] == Kind.NORMAL:
            kinds[token_id] = Kind.CONTROL
    marked = [(tokens[i], i, kind) for i, kind in enumerate(kinds) if kind != Kind.NORMAL and tokens[i]]
    control = {text: i for text, i, kind in marked if kind in (Kind.CONTROL, Kind.UNKNOWN)}
    return Vocabulary(
        model=_value(metadata, "model", str, ""),
        pre=_value(metadata, "pre", str, ""),
        tokens=tokens,
        kinds=kinds,
        scores=_numbers(metadata, "scores", float, len(tokens)),
        merges=_strings(metadata, "merges"),
        control=control,
        defined={text: i for text, i, kind in marked if kind == Kind.USER_DEFINED},
        bos=ids["bos"],
        eos=ids["eos"],
        unknown=ids["unknown"],
        add_bos=_value(metadata, "add_bos_token", bool, None),
        add_eos=_value(metadata, "add_eos_token", bool, False),
        space_prefix=_value(metadata, "add_space_prefix", bool, None),
        stop_ids=_stop_ids(control, [ids["eos"], ids["eot"], ids["eom"]]),
        charsmap=_bytes(metadata, "precompiled_charsmap"),
        squeeze_blanks=_value(metadata, "remove_extra_whitespaces", bool, False),
        lowercase=_value(metadata, "lowercase", bool, None),
    )


def _stop_ids(control: Mapping[str, int], named: Sequence[int | None]) -> frozenset[int]:
    stops = {token_id for token_id in named if token_id is not None}
    ends = {text: token_id for text, token_id in control.items() if text in END_TOKENS}
    if "<|return|>" in ends and ends.get("<|end|>") not in stops:
        ends.pop("<|end|>", None)  # the Harmony format ends each message of one turn with <|end|>
    return frozenset(stops | set(ends.values()))


_Value = TypeVar("_Value")
_Default = TypeVar("_Default")


def _value(metadata: Mapping[str, object], name: str, kind: type[_Value], default: _Default) -> _Value | _Default:
    value = metadata.get(PREFIX + name)
    if value is None:
        return default
    if not isinstance(value, kind):
        raise ModelFileError(f"{PREFIX}{name} must be a {kind.__name__}, got {value!r:.80}")
    return value


def _strings(metadata: Mapping[str, object], name: str, *, required: bool = False) -> Sequence[str]:
    value = metadata.get(PREFIX + name)
    if value is None and not required:
        return ()
    if not isinstance(value, list | tuple) or set(map(type, value)) != {str}:
        raise ModelFileError(f"{PREFIX}{name} must be a list of strings and not empty, got {value!r:.80}")
    return value


def _numbers(metadata: Mapping[str, object], name: str, kind: type[_Number], length: int) -> Sequence[_Number]:
    value = metadata.get(PREFIX + name)
    if value is None:
        return ()
    if not isinstance(value, list | tuple) or not set(map(type, value)) <= {int, kind}:
        raise ModelFileError(f"{PREFIX}{name} must be a list of numbers, got {value!r:.80}")
    if len(value) != length:
        raise ModelFileError(f"{PREFIX}{name} must have one entry for each of the {length} tokens, got {len(value)}")
    return value


def _bytes(metadata: Mapping[str, object], name: str) -> bytes:
    value = metadata.get(PREFIX + name)
    if value is None:
        return b""
    try:
        if not isinstance(value, list | tuple | bytes):
            raise TypeError
        return bytes(each & 0xFF if isinstance(each, int) else each for each in value)
    except (TypeError, ValueError):
        raise ModelFileError(f"{PREFIX}{name} must be a list of bytes, got {value!r:.80}") from None


def _token_id(metadata: Mapping[str, object], name: str, count: int) -> int | None:
    value = _value(metadata, f"{name}_token_id", int, None)
    if value is not None and not 0 <= value < count:
        raise ModelFileError(f"{PREFIX}{name}_token_id must be an id under {count}, got {value}")
    return value
