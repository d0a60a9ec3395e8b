"""SentencePiece's precompiled normalisation: which characters become which, as its models carry it.

Knows the layout of `precompiled_charsmap`: the bytes of a trie, the trie (a double array as Darts-clone writes it,
Yata 2011), and the texts that its values point into. At each place the longest key wins; what begins none stays. The
`tokenizers` library has a reader for it too, but that goes by whole grapheme clusters, and loses accents.
"""

from __future__ import annotations

import struct

from pagoda.errors import ModelFileError

_LEAF, _LABEL, _VALUE = 1 << 8, 1 << 31 | 0xFF, (1 << 31) - 1
_MOST = 16 * 2**20


class CharsMap:
    """A normalisation. Immutable but for a memo of which characters begin a key; thread-safe."""

    def __init__(self, raw: bytes) -> None:
        """Read it.

        Raises:
            ModelFileError: it is cut short, or points outside itself.
        """
        size = int.from_bytes(raw[:4], "little")
        if not 4 <= size <= len(raw) - 4 or size % 4 or len(raw) > _MOST:
            raise ModelFileError(f"tokenizer.ggml.precompiled_charsmap of {len(raw)} bytes has a trie of {size}")
        self._units = struct.unpack(f"<{size // 4}I", raw[4 : 4 + size])
        self._texts = raw[4 + size :]
        self._begins: dict[str, bool] = {}

    def normalize(self, text: str) -> str:
        """Each longest key in `text`, from left to right, by what it becomes.

        Raises:
            ModelFileError: a value of the map is no text.
        """
        if not any(map(self._may_begin, set(text))):
            return text
        raw, parts, i = text.encode(), [], 0
        plain = 0
        while i < len(raw):
            length, value = self._longest(raw, i)
            if length:
                parts += [raw[plain:i], self._text(value)]
                i = plain = i + length
            else:
                i += _width(raw[i])
        try:
            return b"".join([*parts, raw[plain:]]).decode()
        except UnicodeDecodeError as error:
            raise ModelFileError(
                f"tokenizer.ggml.precompiled_charsmap makes of {text!r:.40} what is no text"
            ) from error

    def _may_begin(self, character: str) -> bool:
        found = self._begins.get(character)
        if found is None:
            found = self._begins[character] = self._walk(character.encode(), 0)[2]
        return found

    def _longest(self, raw: bytes, start: int) -> tuple[int, int]:
        length, value, _ = self._walk(raw, start)
        return length, value

    def _walk(self, raw: bytes, start: int) -> tuple[int, int, bool]:
        """Length and value of the longest key at `start`, 0 if there is none; whether the trie goes on past the end."""
        units, best, value = self._units, 0, 0
        at = _offset(units[0])
        for i in range(start, len(raw)):
            at ^= raw[i]
            if at >= len(units) or units[at] & _LABEL != raw[i]:
                return best, value, best > 0
            unit = units[at]
            at ^= _offset(unit)
            if at >= len(units):
                raise ModelFileError("tokenizer.ggml.precompiled_charsmap points outside itself")
            if unit & _LEAF:
                best, value = i + 1 - start, units[at] & _VALUE
        return best, value, True

    def _text(self, value: int) -> bytes:
        end = self._texts.find(b"\0", value)
        return self._texts[value : end if end >= 0 else len(self._texts)]


def _offset(unit: int) -> int:
    return (unit >> 10) << ((unit & (1 << 9)) >> 6)


def _width(lead: int) -> int:
    """Bytes of the character that begins so."""
    return 1 if lead < 0x80 else 2 if lead < 0xE0 else 3 if lead < 0xF0 else 4
