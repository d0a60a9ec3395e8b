"""SentencePiece's unigram model (`tokenizer.ggml.model` = t5): of all ways to spell a text the likeliest.

Kudo, "Subword regularization", 2018. The search is the `tokenizers` library's; normalisation, blanks and byte fallback
are done here. Does not know control tokens: here all text is plain text, and neither theirs nor that of byte tokens is
ever found in it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pagoda.errors import ModelFileError
from pagoda.text.charsmap import CharsMap
from pagoda.text.sentencepiece import BLANK, spelled_byte
from pagoda.text.vocabulary import Kind, Vocabulary

if TYPE_CHECKING:
    import tokenizers


class Unigram:
    """Plain text to token ids. Immutable and thread-safe."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        """Build it.

        Raises:
            ModelFileError: no scores, no normal tokens, no unknown token, or a damaged normalisation.
        """
        tokens, kinds, scores = vocabulary.tokens, vocabulary.kinds, vocabulary.scores
        if not scores or Kind.NORMAL not in kinds or vocabulary.unknown is None:
            raise ModelFileError(
                "tokenizer.ggml.model is t5, which needs tokenizer.ggml.scores, unknown_token_id and normal tokens"
            )
        self._map = CharsMap(vocabulary.charsmap) if vocabulary.charsmap else None
        self._prefix = "" if vocabulary.space_prefix is False else BLANK
        self._squeeze, self._unknown = vocabulary.squeeze_blanks, vocabulary.unknown
        self._ids = [i for i, kind in enumerate(kinds) if kind == Kind.NORMAL and i != self._unknown]
        known = {spelled_byte(tokens[i]): i for i, kind in enumerate(kinds) if kind == Kind.BYTE}
        self._bytes = known if len(known) == 256 else None
        self._model = _build([(tokens[i], float(scores[i])) for i in self._ids])

    def encode(self, texts: Sequence[str]) -> list[Sequence[int]]:
        """Encode each text by itself, with a blank before it if the vocabulary wants one."""
        return [self._encode(self._normalized(text)) for text in texts]

    def spelled(self, token: str) -> bytes:
        """The bytes that a normal token stands for."""
        return token.replace(BLANK, " ").encode()

    def _normalized(self, text: str) -> str:
        text = text if self._map is None else self._map.normalize(text)
        if self._squeeze:
            text = re.sub(" +", " ", text.strip(" "))
        return (self._prefix + text).replace(" ", BLANK) if text else ""

    def _encode(self, text: str) -> list[int]:
        if not text:
            return []
        found = self._model.encode(text, add_special_tokens=False)
        ids: list[int] = []
        for token, (start, end) in zip(found.ids, found.offsets, strict=True):
            if token < len(self._ids):
                ids.append(self._ids[token])
            elif self._bytes is None:
                ids.append(self._unknown)
            else:
                ids += [self._bytes[byte] for byte in text[start:end].encode()]
        return ids


def _build(pieces: list[tuple[str, float]]) -> tokenizers.Tokenizer:
    """The last token stands for runs of what no piece spells. Its own text is a blank, of which none is left."""
    from tokenizers import Tokenizer, models

    try:
        return Tokenizer(models.Unigram([*pieces, (" ", 0.0)], len(pieces)))
    except Exception as error:  # the library raises nothing narrower
        raise ModelFileError(f"tokenizer.ggml.tokens and scores make no unigram model: {error}") from error
