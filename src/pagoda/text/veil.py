"""Keeping what a client writes from becoming control tokens.

A chat template mixes the clients' text with control tokens that it writes itself, into one string. To tell the two
apart in that string, characters of the clients' text that could be part of a control token are exchanged, before the
template runs, for private-use characters that occur nowhere else; after the string has been cut at its control tokens,
they are exchanged back. One character stands for one character, so templates may trim, slice and measure the text.

The promise: as long as a template puts a client's text somewhere whole or trimmed, no control token in the prompt has
a character of it. A template that cuts a text elsewhere cannot uncover a control token that was written in it. (One
that takes characters out of its middle could make a new one.) Messages' roles are not such text: they are checked
against a list. Does not know templates or token ids.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from pagoda.errors import InvalidRequest
from pagoda.text.literals import Literals

PRIVATE_USE = (range(0xF0000, 0xFFFFE), range(0x100000, 0x10FFFE))
"""The supplementary private-use planes: to no template do they mean anything."""


class ControlTexts:
    """The spellings of control tokens, and where a text has some or might complete one. Immutable."""

    def __init__(self, control: Iterable[str]) -> None:
        texts = tuple(control)
        self._literals = Literals(dict.fromkeys(texts, 0))
        self._longest = max(map(len, texts), default=0)
        self._joined = "\0" + "\0".join(texts) + "\0"

    def spans(self, text: str) -> Iterator[tuple[int, int]]:
        """Begin and end of every stretch that is a control token's text, or could be a part of one.

        A part lies at an edge of the text, where the template's own characters may complete it. Since templates trim,
        the edges without white space count too.
        """
        begin = 0
        while (found := self._literals.find(text, begin)) is not None:
            yield found[0], found[1]
            begin = found[0] + 1
        yield from self._edges(text, 0)
        core = text.strip()
        if core != text:
            yield from self._edges(core, len(text) - len(text.lstrip()))

    def _edges(self, text: str, offset: int) -> Iterator[tuple[int, int]]:
        end = offset + len(text)
        if 0 < len(text) < self._longest and text in self._joined:
            yield offset, end
        for size in range(1, min(len(text), self._longest - 1) + 1):
            if "\0" + text[-size:] in self._joined:
                yield end - size, end
            if text[:size] + "\0" in self._joined:
                yield offset, offset + size


class Veil:
    """The exchange of characters for one conversation."""

    def __init__(self, control: ControlTexts, texts: Iterable[str]) -> None:
        """For `texts`: every string that will be in the same prompt, the template's own included."""
        self._control = control
        self._texts = texts
        self._free: Iterator[str] | None = None
        self._stand_ins: dict[str, str] = {}
        self._originals: dict[int, str] = {}

    def hide(self, text: str) -> str:
        """Exchange what is or could be part of a control token.

        Raises:
            InvalidRequest: the conversation uses up the private-use characters.
        """
        spans = list(self._control.spans(text))
        if not spans:
            return text
        characters = list(text)
        for begin, end in spans:
            characters[begin:end] = [self._stand_in(character) for character in text[begin:end]]
        return "".join(characters)

    def reveal(self, text: str) -> str:
        """Exchange back."""
        return text.translate(self._originals) if self._originals else text

    def _stand_in(self, character: str) -> str:
        if character not in self._stand_ins:
            if self._free is None:
                used = set[str]().union(*self._texts)
                self._free = (chr(code) for plane in PRIVATE_USE for code in plane if chr(code) not in used)
            stand_in = next(self._free, None)
            if stand_in is None:
                raise InvalidRequest("messages use every private-use character; remove some", "messages")
            self._stand_ins[character] = stand_in
            self._originals[ord(stand_in)] = character
        return self._stand_ins[character]
