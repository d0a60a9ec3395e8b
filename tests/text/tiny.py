"""Vocabularies small enough to think through."""

from __future__ import annotations

from pagoda.text.bytelevel import BYTES

CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
MERGES = ("h e", "l l", "he ll", "hell o", "Ġ w", "o r", "Ġw or", "l d", "Ġwor ld", "i m", "< |", "| >", "a a", "aa aa")


def byte_level(
    *,
    control: tuple[str, ...] = ("<|im_start|>", "<|im_end|>", "<|endoftext|>"),
    defined: tuple[str, ...] = (),
    merges: tuple[str, ...] = MERGES,
    **keys: object,
) -> dict[str, object]:
    """Metadata of a byte-level vocabulary: control tokens first, then 256 bytes, then the merges' results."""
    words = [merge.replace(" ", "") for merge in merges if merge.replace(" ", "") not in control]
    tokens = [*control, *defined, *BYTES, *words]
    kinds = [3] * len(control) + [4] * len(defined) + [1] * (256 + len(words))
    metadata: dict[str, object] = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": kinds,
        "tokenizer.ggml.merges": list(merges),
        "tokenizer.chat_template": CHATML,
    }
    return metadata | {f"tokenizer.{key.replace('__', '.')}": value for key, value in keys.items()}


def sentencepiece(
    pieces: dict[str, float],
    *,
    control: tuple[str, ...] = ("<s>", "</s>"),
    defined: tuple[str, ...] = (),
    fallback: bool = True,
    **keys: object,
) -> dict[str, object]:
    """Metadata of a SentencePiece vocabulary: <unk>, control tokens, 256 bytes if `fallback`, then pieces."""
    raw = [f"<0x{byte:02X}>" for byte in range(256)] if fallback else []
    metadata: dict[str, object] = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": ["<unk>", *control, *raw, *defined, *pieces],
        "tokenizer.ggml.token_type": [2] + [3] * len(control) + [6] * len(raw) + [4] * len(defined) + [1] * len(pieces),
        "tokenizer.ggml.scores": [0.0] * (1 + len(control) + len(raw) + len(defined)) + list(pieces.values()),
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
    }
    return metadata | {f"tokenizer.{key.replace('__', '.')}": value for key, value in keys.items()}
