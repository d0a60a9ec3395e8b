"""Openings: beginnings of prompts (system prompts, tool lists, documents), computed before anyone asks, and pinned.

A file of them has a JSON object on each line. Knows their form, how they become tokens, and the engine's `pin`; knows
nothing of HTTP.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pagoda.errors import InvalidConfig, InvalidRequest, MemoryLimit, UnsupportedField
from pagoda.text.opening import Encoder, chat_opening, text_opening
from pagoda.types import PinInfo

if TYPE_CHECKING:
    from pagoda.engine.engine import Engine

FORMS = ("messages", "text", "token_ids")
"""An opening is one of these."""
MAX_NAME = 200


@dataclass(frozen=True, slots=True)
class Opening:
    """One beginning, and what it is called."""

    form: str
    """One of `FORMS`."""
    content: Any
    name: str = ""
    line: int = 0
    """Of its file, from 1; 0 if it has none."""

    def encode(self, tokenizer: Encoder, most: int | None = None) -> tuple[int, ...]:
        """Its tokens: those that every prompt which begins with it has. `most` is what the context holds.

        Raises:
            InvalidRequest: it cannot be encoded.
        """
        if self.form == "messages":
            return chat_opening(tokenizer, self.content, most)
        return text_opening(tokenizer, self.content, most) if self.form == "text" else tuple(self.content)

    @property
    def as_dict(self) -> dict[str, Any]:
        """As it stands in a file, and in the body of a request."""
        return {self.form: self.content} | ({"name": self.name} if self.name else {})


def parse_opening(raw: object, line: int = 0, more: Sequence[str] = ()) -> Opening:
    """An opening from a JSON value; nulls count as absent.

    Args:
        raw: `{"messages": [..]}`, `{"text": ".."}` or `{"token_ids": [..]}`, each with a `name` if need be.
        line: of its file.
        more: fields besides that are known to the caller.

    Raises:
        UnsupportedField: a field that there is not.
        InvalidRequest: anything else that is wrong.
    """
    if not isinstance(raw, Mapping):
        raise InvalidRequest(f"an opening is an object with one of {', '.join(FORMS)}; got {raw!r:.80}")
    sent = {key: value for key, value in raw.items() if value is not None}
    for key in sent:
        if key not in (*FORMS, "name", *more):
            raise UnsupportedField(f"an opening has no field {key!r}; it has {', '.join((*FORMS, 'name', *more))}", key)
    forms = [form for form in FORMS if form in sent]
    if len(forms) != 1:
        got = " and ".join(forms) or "none"
        raise InvalidRequest(f"give one of {', '.join(FORMS)}, got {got}", forms[-1] if forms else None)
    (form,), name = forms, sent.get("name", "")
    if not isinstance(name, str) or len(name) > MAX_NAME:
        raise InvalidRequest(f"name must be a string of at most {MAX_NAME} characters, got {name!r:.80}", "name")
    return Opening(form, _content(form, sent[form]), name, line)


def _content(form: str, value: object) -> object:
    if form == "text":
        right = isinstance(value, str)
    else:
        kind: type = int if form == "token_ids" else dict
        right = isinstance(value, list) and all(isinstance(v, kind) and not isinstance(v, bool) for v in value)
    if not right or not value:
        what = {"text": "a text", "token_ids": "a list of token ids", "messages": "a list of messages"}[form]
        raise InvalidRequest(f"{form} must be {what}, and not empty; got {value!r:.80}", form)
    return value


def read_openings(path: str | Path) -> list[Opening]:
    """The openings of a file, in order; empty lines are passed over.

    Raises:
        InvalidConfig: the file cannot be read, or a line is wrong; it is named.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InvalidConfig(f"cannot read the openings in {path}: {reason}") from None
    openings = []
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            openings.append(parse_opening(json.loads(line), number))
        except json.JSONDecodeError as error:
            wrong = f"not valid JSON: {error.msg} at column {error.colno}; each line is one JSON object"
            raise InvalidConfig(f"{path}, line {number}: {wrong}") from None
        except (InvalidRequest, RecursionError) as error:
            raise InvalidConfig(f"{path}, line {number}: {error}") from None
    return openings


@dataclass(frozen=True, slots=True)
class Warmed:
    """One opening that was computed and pinned."""

    number: int
    """From 1."""
    total: int
    pin: PinInfo
    seconds: float

    def __str__(self) -> str:
        name = f" {self.pin.name!r}" if self.pin.name else ""
        size = f"{self.pin.tokens:,} tokens in {self.pin.pages:,} pages"
        return f"warmed {self.number} of {self.total}{name}: {size}, {self.seconds:.2f} s"


class Warming:
    """Openings of a file, encoded and so known to be sound, to be computed and pinned.

    Raises:
        InvalidConfig: one cannot be encoded; its line is named.
    """

    def __init__(self, tokenizer: Encoder, openings: Iterable[Opening], path: str) -> None:
        self._path = path
        self._prompts = [(opening, self._encoded(tokenizer, opening)) for opening in openings]

    def __len__(self) -> int:
        return len(self._prompts)

    def run(self, engine: Engine, tell: Callable[[Warmed], None] = lambda _: None) -> None:
        """Compute and pin them, one after another, for every tenant.

        Args:
            engine: a started one.
            tell: is called after each.

        Raises:
            InvalidConfig: one is too long for the context, or pins would take too many pages.
            EngineDied: the engine has stopped.
        """
        for number, (opening, prompt) in enumerate(self._prompts, 1):
            began = time.monotonic()
            try:
                pin = engine.pin(prompt, name=opening.name).result()
            except (InvalidRequest, MemoryLimit) as error:
                raise self._wrong(opening, error) from None
            tell(Warmed(number, len(self._prompts), pin, time.monotonic() - began))

    def _encoded(self, tokenizer: Encoder, opening: Opening) -> tuple[int, ...]:
        try:
            return opening.encode(tokenizer)
        except InvalidRequest as error:
            raise self._wrong(opening, error) from None

    def _wrong(self, opening: Opening, error: Exception) -> InvalidConfig:
        return InvalidConfig(f"{self._path}, line {opening.line}: {error}")
