"""WordPiece (`tokenizer.ggml.model` = bert): each word by its longest known beginnings. `tokenizers` does it.

Schuster and Nakajima, "Japanese and Korean voice search", 2012; words cut and cleaned as Devlin et al., "BERT", 2019.
In GGUF the beginning of a word is spelled with a blank (U+2581) before it, where BERT has ## before what goes on.
Blanks are not in the ids: text comes back with one between any two words.
"""

from __future__ import annotations

from collections.abc import Sequence

from pagoda.errors import ModelFileError
from pagoda.text.sentencepiece import BLANK
from pagoda.text.vocabulary import Kind, Vocabulary

_LONGEST = 100
"""Letters of the longest word that is looked at, as in BERT; longer ones are unknown."""


class WordPiece:
    """Plain text to token ids. Immutable and thread-safe; encoding holds no GIL."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        """Build it.

        Raises:
            ModelFileError: no unknown token, or two tokens that mean the same.
        """
        from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

        tokens, kinds, unknown = vocabulary.tokens, vocabulary.kinds, vocabulary.unknown
        if unknown is None:
            raise ModelFileError("tokenizer.ggml.model is bert, which needs tokenizer.ggml.unknown_token_id")
        normal = [i for i, kind in enumerate(kinds) if kind == Kind.NORMAL and i != unknown]
        ids = {tokens[i][1:] if tokens[i].startswith(BLANK) else f"##{tokens[i]}": i for i in normal}
        if len(ids) < len(normal):
            raise ModelFileError("tokenizer.ggml.tokens has a token twice")
        mark = "[UNK]"  # brackets are words of their own: it is never looked up
        lower = vocabulary.lowercase
        if lower is None:  # a vocabulary that knows no capitals was made of text without them
            lower = not any(any(map(str.isupper, tokens[i])) for i in normal)
        model = models.WordPiece({**ids, mark: unknown}, unk_token=mark, max_input_chars_per_word=_LONGEST)
        self._tokenizer = Tokenizer(model)
        self._tokenizer.normalizer = normalizers.BertNormalizer(lowercase=lower)
        self._tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()

    def encode(self, texts: Sequence[str]) -> list[Sequence[int]]:
        """Encode each text by itself."""
        return [encoding.ids for encoding in self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)]

    def spelled(self, token: str) -> bytes:
        """The bytes that a normal token stands for."""
        return token.replace(BLANK, " ").encode()
