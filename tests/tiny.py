"""Tiny random models of the Llama architecture, as GGUF files: real in every way but what they know.

    path = tiny_model(tmp_path, layers=2, width=96, seed=3)

The same arguments give the same bytes. Weights are scaled so that each layer changes the hidden state by about its own
size: logits are spread out (standard deviation `liveliness`), hang on the whole context, and greedy output wanders.
The tokenizer is byte-level BPE: any text can be encoded.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np

from backends.formats import FORMATS, random_blocks
from gguf_writer import File, Tensor, stored
from pagoda import quant

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
END_OF_TEXT, IM_START, IM_END = range(3)
SMALLEST_VOCABULARY = len(SPECIAL) + 256

CHATML = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
_NORMAL, _CONTROL = 1, 3


@dataclass(frozen=True)
class TinyShape:
    """What a tiny model looks like. Rows must be whole blocks: of 32 numbers in q4_0, of 256 in q4_k.

    Weights in formats that Pagoda cannot write are blocks of random bytes with fitting scales.
    """

    layers: int = 2
    width: int = 64
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 16
    ffn: int = 128
    vocabulary: int = 320
    context: int = 512
    format: str = "q4_1"
    """Of the linear layers."""
    embedding_format: str = "q8_0"
    """Of the token embedding and the output projection."""
    formats: dict[str, str] = field(default_factory=dict)
    """Exceptions by tensor name, or by the name's end: {"ffn_down.weight": "q8_0"}."""
    tied: bool = True
    """Whether the output projection is the token embedding."""
    rope_base: float = 10000.0
    eps: float = 1e-5
    pre: str = "smollm"
    """The pre-tokenizer's name."""
    liveliness: float = 3.0
    """Standard deviation of the logits, about."""
    seed: int = 0


def tiny_model(directory: Path, **shape: Any) -> Path:
    """Write a tiny model; its name says how it differs from the default. Arguments are `TinyShape`'s."""
    wanted = TinyShape(**shape)
    default = TinyShape()
    differences = [f.name for f in fields(wanted) if getattr(wanted, f.name) != getattr(default, f.name)]
    name = "-".join(["tiny", *(f"{n}={getattr(wanted, n)}" for n in differences)])
    path = directory / ("".join(c if c.isalnum() or c in "-=_." else "_" for c in name)[:200] + ".gguf")
    path.write_bytes(tiny_file(wanted).bytes())
    return path


def tiny_file(shape: TinyShape) -> File:
    """The model before it is made bytes, for tests that damage it."""
    return File(metadata(shape), list(tensors(shape)))


def metadata(shape: TinyShape) -> dict[str, object]:
    """As a converted Llama model has it."""
    tokens, kinds, merges = vocabulary(shape.vocabulary)
    usual = shape.heads * shape.head_dim == shape.width
    return {
        "general.architecture": "llama",
        "general.name": "tiny",
        "llama.block_count": shape.layers,
        "llama.context_length": shape.context,
        "llama.embedding_length": shape.width,
        "llama.feed_forward_length": shape.ffn,
        "llama.attention.head_count": shape.heads,
        "llama.attention.head_count_kv": shape.kv_heads,
        "llama.attention.layer_norm_rms_epsilon": shape.eps,
        **(
            {}
            if usual
            else {"llama.attention.key_length": shape.head_dim, "llama.attention.value_length": shape.head_dim}
        ),
        "llama.rope.freq_base": shape.rope_base,
        "llama.rope.dimension_count": shape.head_dim,
        "llama.vocab_size": shape.vocabulary,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": shape.pre,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": kinds,
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.bos_token_id": IM_START,
        "tokenizer.ggml.eos_token_id": IM_END,
        "tokenizer.ggml.unknown_token_id": END_OF_TEXT,
        "tokenizer.ggml.padding_token_id": IM_END,
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.ggml.add_space_prefix": False,
        "tokenizer.chat_template": CHATML,
    }


def byte_letters() -> list[str]:
    """GPT-2's printable letter for each byte: itself if printable, else the next letter from 256 on."""
    plain = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    spare = iter(range(256, 512))
    return [chr(byte if byte in plain else next(spare)) for byte in range(256)]


def vocabulary(size: int) -> tuple[list[str], list[int], list[str]]:
    """Tokens, their kinds (1 normal, 3 control) and merges: specials, bytes, then merged pairs, then reserved ones."""
    assert size >= SMALLEST_VOCABULARY, f"a vocabulary needs {SMALLEST_VOCABULARY} tokens, got {size}"
    letters = byte_letters()
    tokens, merges = [*SPECIAL, *letters], []
    common = [letters[ord(c)] for c in " etaoinsrhldcum"]
    pairs = ((a, b) for a in common for b in common if b != common[0])
    for (a, b), _ in zip(pairs, range(size - len(tokens)), strict=False):
        tokens.append(a + b)
        merges.append(f"{a} {b}")
    normal = len(tokens)
    tokens += [f"<|reserved_{i}|>" for i in range(size - normal)]
    kinds = [_CONTROL] * len(SPECIAL) + [_NORMAL] * (normal - len(SPECIAL)) + [_CONTROL] * (size - normal)
    return tokens, kinds, merges


def tensors(shape: TinyShape) -> Iterator[Tensor]:
    """Every tensor, in the order of the layers."""
    rng = np.random.default_rng(shape.seed)
    width, queries, keys = shape.width, shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim

    def matrix(name: str, rows: int, columns: int, gain: float, format: str = shape.format) -> Tensor:
        found = next((f for end, f in shape.formats.items() if name.endswith(end)), format)
        size = gain / math.sqrt(columns)
        if not isinstance(quant.by_name(found), quant.Quantizer):
            fmt = FORMATS[found]
            raw = random_blocks(rng, fmt, rows * columns // fmt.block, size)
            return Tensor(name, (rows, columns), found, raw.tobytes())
        floats = rng.standard_normal((rows, columns)) * size
        return stored(name, floats.astype(np.float32), found)

    def vector(name: str, mean: float) -> Tensor:
        return stored(name, (mean * rng.uniform(0.8, 1.2, width)).astype(np.float32), "f32")

    # The embedding is small beside what the layers add: else a tied output would repeat the last token for ever.
    yield matrix("token_embd.weight", shape.vocabulary, width, 1.0, shape.embedding_format)
    for i in range(shape.layers):
        yield vector(f"blk.{i}.attn_norm.weight", 1.0)
        yield matrix(f"blk.{i}.attn_q.weight", queries, width, 1.5)
        yield matrix(f"blk.{i}.attn_k.weight", keys, width, 1.5)
        yield matrix(f"blk.{i}.attn_v.weight", keys, width, 1.0)
        yield matrix(f"blk.{i}.attn_output.weight", width, queries, 1.0)
        yield vector(f"blk.{i}.ffn_norm.weight", 1.0)
        yield matrix(f"blk.{i}.ffn_gate.weight", shape.ffn, width, 1.5)
        yield matrix(f"blk.{i}.ffn_up.weight", shape.ffn, width, 1.5)
        yield matrix(f"blk.{i}.ffn_down.weight", width, shape.ffn, 1.0)
    yield vector("output_norm.weight", shape.liveliness)
    if not shape.tied:
        yield matrix("output.weight", shape.vocabulary, width, 1.0, shape.embedding_format)
