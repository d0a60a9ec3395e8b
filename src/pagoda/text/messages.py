"""A chat's messages, as clients send them: checked, and put into the one form that templates see.

Knows the shapes of OpenAI's chat messages. Does not know templates or tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pagoda.errors import InvalidRequest, UnsupportedField

ROLES = ("system", "developer", "user", "assistant", "tool")
"""Templates write the role next to control tokens, so it is one of these and never a client's own text."""


def normalize(messages: Sequence[Mapping[str, object]]) -> list[dict[str, str]]:
    """Check messages; return each with `role`, `content` (text parts joined) and, if it had one, `name`.

    Raises:
        UnsupportedField: a field or a content part that Pagoda does not have.
        InvalidRequest: no messages, or one without a role or content, or text that is not Unicode.
    """
    if isinstance(messages, str | bytes | Mapping) or not isinstance(messages, Sequence):
        raise InvalidRequest(f"messages must be a list, got {messages!r:.80}", "messages")
    if not messages:
        raise InvalidRequest("messages must hold at least one message, got an empty list", "messages")
    return [_message(message, f"messages[{index}]") for index, message in enumerate(messages)]


def check_text(text: str, where: str) -> str:
    """Return `text` as it is.

    Raises:
        InvalidRequest: it is no string, or has half of a surrogate pair, which is no character and has no UTF-8.
    """
    if not isinstance(text, str):
        raise InvalidRequest(f"{where} must be a string, got {text!r:.80}", where)
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidRequest(
            f"{where} has a lone surrogate, U+{ord(text[error.start]):04X}, at character {error.start}: "
            "it is half of a character; send the whole one, or remove it",
            where,
        ) from None
    return text


def _message(message: Mapping[str, object], where: str) -> dict[str, str]:
    if not isinstance(message, Mapping):
        raise InvalidRequest(f"{where} must be an object with role and content, got {message!r:.80}", where)
    for key, value in message.items():
        if key not in ("role", "content", "name") and value is not None:
            raise UnsupportedField(f"{where}.{key} is not supported; leave it out", f"{where}.{key}")
    role = message.get("role")
    if role not in ROLES or not isinstance(role, str):
        raise InvalidRequest(f"{where}.role must be one of {', '.join(ROLES)}, got {role!r:.80}", f"{where}.role")
    plain = {"role": role, "content": _content(message.get("content"), f"{where}.content")}
    name = message.get("name")
    if name is not None:
        plain["name"] = check_text(name, f"{where}.name") if isinstance(name, str) else _refuse(name, f"{where}.name")
    return plain


def _content(content: object, where: str) -> str:
    if isinstance(content, str):
        return check_text(content, where)
    if not isinstance(content, Sequence) or not content or isinstance(content, bytes):
        raise InvalidRequest(f"{where} must be a string or a list of text parts, got {content!r:.80}", where)
    return "".join(_part(part, f"{where}[{index}]") for index, part in enumerate(content))


def _part(part: object, where: str) -> str:
    if not isinstance(part, Mapping) or not isinstance(part.get("type"), str):
        raise InvalidRequest(f"{where} must be an object with a type, got {part!r:.80}", where)
    if part["type"] != "text":
        raise UnsupportedField(f"{where}: parts of type {part['type']!r} are not supported, only text", where)
    for key, value in part.items():
        if key not in ("type", "text") and value is not None:
            raise UnsupportedField(f"{where}.{key} is not supported; leave it out", f"{where}.{key}")
    text = part.get("text")
    return check_text(text, f"{where}.text") if isinstance(text, str) else _refuse(text, f"{where}.text")


def _refuse(value: object, where: str) -> str:
    raise InvalidRequest(f"{where} must be a string, got {value!r:.80}", where)
