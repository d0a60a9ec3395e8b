"""Byte-level byte-pair encoding (`tokenizer.ggml.model` = gpt2), done by the `tokenizers` library.

Knows how the 256 bytes are spelled in such a vocabulary, and how to build the library's model from it. Does not know
control tokens: here all text is plain text. Sennrich et al., "Neural machine translation of rare words with subword
units", 2016; bytes as the alphabet: Radford et al., "Language models are unsupervised multitask learners", 2019.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pagoda.errors import ModelFileError
from pagoda.text.pretokenizers import PreTokenizer, pre_tokenizer
from pagoda.text.vocabulary import Vocabulary

if TYPE_CHECKING:
    import tokenizers


def _alphabet() -> dict[str, int]:
    """The character that spells each byte: itself if it is visible in Latin-1, else the next one from U+0100 on."""
    visible = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    hidden = [byte for byte in range(256) if byte not in visible]
    return {chr(byte): byte for byte in visible} | {chr(256 + i): byte for i, byte in enumerate(hidden)}


BYTES = _alphabet()


class ByteLevel:
    """Plain text to token ids. Immutable and thread-safe; encoding holds no GIL."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        """Build it.

        Raises:
            ModelFileError: the merges do not fit the vocabulary.
            UnsupportedModel: the pre-tokenizer is not known.
        """
        self.words = pre_tokenizer(vocabulary.pre)
        self._tokenizer = _build(vocabulary, self.words)

    def encode(self, texts: Sequence[str]) -> list[Sequence[int]]:
        """Encode each text by itself. Bytes that the vocabulary lacks are left out, as they were in training."""
        return [encoding.ids for encoding in self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)]

    def spelled(self, token: str) -> bytes:
        """The bytes that a normal token stands for."""
        try:
            return bytes([BYTES[character] for character in token])
        except KeyError:  # added after training, and spelled as it reads
            return token.encode()


def _build(vocabulary: Vocabulary, words: PreTokenizer) -> tokenizers.Tokenizer:
    from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers

    control = vocabulary.control
    try:
        pairs = [(a, b) for a, b in (merge.split(" ") for merge in vocabulary.merges) if a + b not in control]
    except ValueError as error:
        raise ModelFileError(f"tokenizer.ggml.merges must have two parts each: {error}") from error
    ids = {token: i for i, token in enumerate(vocabulary.tokens)}
    for token in control:
        del ids[token]  # so that no plain text can become a control token
    try:
        tokenizer = Tokenizer(models.BPE(vocab=ids, merges=pairs, ignore_merges=words.whole_words))
    except Exception as error:  # the library raises nothing narrower
        raise ModelFileError(f"tokenizer.ggml.merges does not fit tokenizer.ggml.tokens: {error}") from error
    splits = [pre_tokenizers.Split(Regex(pattern), behavior="isolated") for pattern in words.patterns]
    spelling = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*splits, spelling])
    if words.nfc:
        tokenizer.normalizer = normalizers.NFC()
    return tokenizer
