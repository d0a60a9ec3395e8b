"""SentencePiece's byte-pair encoding with scores (`tokenizer.ggml.model` = llama), as Llama 2 and Gemma have it.

Knows pieces, scores and byte fallback. Does not know control tokens: here all text is plain text. Unlike byte-level
vocabularies these have no list of merges: whichever neighbours together spell the piece with the best score are
joined, the leftmost such pair first. The `tokenizers` library can only imitate that with a list of all possible
merges, which for 262,144 pieces takes seconds to derive and is not exact when scores tie; this takes a fraction of a
second. Kudo and Richardson, "SentencePiece", 2018; byte fallback: its option of that name.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from heapq import heappop, heappush

from pagoda.errors import ModelFileError
from pagoda.text.vocabulary import Kind, Vocabulary

BLANK = "▁"
_CACHED_WORDS = 1 << 16
_CACHED_LENGTH = 48
_BYTE = re.compile(r"<0x([0-9A-F]{2})>")


class SentencePiece:
    """Plain text to token ids. Immutable but for a cache, and thread-safe."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        """Build it.

        Raises:
            ModelFileError: no scores or no token types, or no way to spell an unknown character.
        """
        if not vocabulary.scores or Kind.NORMAL not in vocabulary.kinds:
            raise ModelFileError("tokenizer.ggml.model is llama, which needs tokenizer.ggml.scores and normal tokens")
        pieces = (Kind.NORMAL, Kind.USER_DEFINED)
        tokens, kinds = vocabulary.tokens, vocabulary.kinds
        self._ids = {token: i for i, (token, kind) in enumerate(zip(tokens, kinds, strict=True)) if kind in pieces}
        self._scores = vocabulary.scores
        self._bytes = {spelled_byte(tokens[i]): i for i, kind in enumerate(kinds) if kind == Kind.BYTE}
        self._unknown = vocabulary.unknown
        if len(self._bytes) < 256 and self._unknown is None:
            raise ModelFileError("the vocabulary has neither 256 byte tokens nor tokenizer.ggml.unknown_token_id")
        self._cut = re.compile(f"(?<=[^{BLANK}{re.escape(_bridges(self._ids))}])(?={BLANK})")
        self._word = lru_cache(_CACHED_WORDS)(self._join)

    def encode(self, texts: Sequence[str]) -> list[Sequence[int]]:
        """Encode each text by itself."""
        return [self._encode(text.replace(" ", BLANK)) for text in texts]

    def spelled(self, token: str) -> bytes:
        """The bytes that a normal token stands for."""
        return token.replace(BLANK, " ").encode()

    def _encode(self, text: str) -> list[int]:
        """Word by word, which changes nothing: no piece reaches across a cut."""
        ids: list[int] = []
        for word in self._cut.split(text):
            ids += self._word(word) if len(word) <= _CACHED_LENGTH else self._join(word)
        return ids

    def _join(self, word: str) -> tuple[int, ...]:
        """Join neighbours, best score first and of these the leftmost, until no two spell a piece."""
        parts = list(word)  # a part that was joined to the one before it is empty
        before, after = list(range(-1, len(word) - 1)), list(range(1, len(word) + 1))
        queue: list[tuple[float, int, int, int]] = []
        for right in range(1, len(word)):
            self._offer(queue, parts, right - 1, right)
        while queue:
            _, left, right, size = heappop(queue)
            if not parts[left] or not parts[right] or len(parts[left]) + len(parts[right]) != size:
                continue  # one of the two has been joined with another since
            parts[left] += parts[right]
            parts[right] = ""
            beyond = after[left] = after[right]
            if beyond < len(parts):
                before[beyond] = left
                self._offer(queue, parts, left, beyond)
            if before[left] >= 0:
                self._offer(queue, parts, before[left], left)
        return tuple(token_id for part in parts if part for token_id in self._spell(part))

    def _offer(self, queue: list[tuple[float, int, int, int]], parts: list[str], left: int, right: int) -> None:
        """Queue two neighbours, if together they spell a piece."""
        joined = parts[left] + parts[right]
        token_id = self._ids.get(joined)
        if token_id is not None:
            heappush(queue, (-self._scores[token_id], left, right, len(joined)))

    def _spell(self, part: str) -> Sequence[int]:
        token_id = self._ids.get(part)
        if token_id is not None:
            return (token_id,)
        try:
            return [self._bytes[byte] for byte in part.encode()]
        except KeyError:
            assert self._unknown is not None, "checked at the start"
            return (self._unknown,)


def spelled_byte(token: str) -> int:
    """The byte that a token such as <0x0A> stands for.

    Raises:
        ModelFileError: it is not spelled so.
    """
    match = _BYTE.fullmatch(token)
    if match is None:
        raise ModelFileError(f"a token of type BYTE must be spelled like <0x0A>, got {token!r}")
    return int(match[1], 16)


def _bridges(pieces: dict[str, int]) -> str:
    """The characters that stand before a blank inside some piece: no cut is allowed after them."""
    between = "\ud800"  # in no piece: it is not a character
    return "".join(sorted(set(re.findall(f"([^{BLANK}{between}]){BLANK}", between.join(pieces)))))
