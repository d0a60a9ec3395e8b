"""Unigram models trained on the spot by SentencePiece itself, as metadata: it is the oracle."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any

import sentencepiece

from .corpus import CORPUS


def trained(**options: Any) -> tuple[sentencepiece.SentencePieceProcessor, dict[str, object]]:
    """The oracle, and its vocabulary in GGUF's words."""
    lines = [line for text in CORPUS for line in text.splitlines() if line.strip() and len(line) < 2000]
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([line for line in lines if "\0" not in line] * 3), model_writer=model,
        model_type="unigram", vocab_size=1500, hard_vocab_limit=False, character_coverage=0.98, minloglevel=2,
        num_threads=1, **options,
    )  # fmt: skip
    oracle = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    return oracle, metadata(oracle, model.getvalue(), **options)


def metadata(
    oracle: sentencepiece.SentencePieceProcessor, model: bytes, *, add_dummy_prefix: bool = True,
    remove_extra_whitespaces: bool = True, **_: object,
) -> dict[str, object]:  # fmt: skip
    ids = range(oracle.vocab_size())
    kinds = [
        2 if oracle.is_unknown(i) else 3 if oracle.is_control(i) else 6 if oracle.is_byte(i) else 1 for i in ids
    ]  # fmt: skip
    values = {
        "model": "t5",
        "tokens": [oracle.id_to_piece(i) for i in ids],
        "scores": [oracle.get_score(i) for i in ids],
        "token_type": kinds,
        "unknown_token_id": oracle.unk_id(),
        "bos_token_id": oracle.bos_id(),
        "eos_token_id": oracle.eos_id(),
        "add_bos_token": False,
        "add_space_prefix": add_dummy_prefix,
        "remove_extra_whitespaces": remove_extra_whitespaces,
        "precompiled_charsmap": list(charsmap(model)),
    }
    return {f"tokenizer.ggml.{name}": value for name, value in values.items()}


def charsmap(model: bytes) -> bytes:
    """Field 2 of the normaliser, which is field 3 of the model."""
    (normalizer,) = [value for field, value in _fields(model) if field == 3]
    return dict(_fields(normalizer)).get(2, b"")


def _fields(raw: bytes) -> Iterator[tuple[int, bytes]]:
    """Numbers and contents of a protocol buffer's fields; numbers as content are left out."""
    i = 0

    def varint() -> int:
        nonlocal i
        value = shift = 0
        while True:
            byte = raw[i]
            i += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    while i < len(raw):
        key = varint()
        if key & 7 == 0:
            varint()
            continue
        size = {1: 8, 5: 4}.get(key & 7) or varint()
        yield key >> 3, raw[i : i + size]
        i += size
