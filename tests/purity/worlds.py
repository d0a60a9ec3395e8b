"""What outputs may depend on: a model and its arithmetic. Each world has its own baseline.

Shapes are tiny and odd: three query heads to a key head, heads that fill no whole number of vectors, rows of no whole
number of tiles, widths that are a multiple of nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np

from backends.formats import FORMATS, random_blocks
from families.tiny_families import CONFIGS, VOCABULARY, as_gguf
from gguf_writer import File, Tensor
from quantised_files import KINDS
from tiny import TinyShape, tiny_file


@dataclass(frozen=True)
class World:
    """A tiny model, by `tiny.TinyShape`'s fields, and its arithmetic."""

    activations: str
    kv_format: str
    shape: dict[str, Any] = field(hash=False)
    formats: Sequence[str] = ()
    """Of the layers' matrices in turn, instead of the shape's: random blocks of formats that Pagoda does not write."""
    family: str = ""
    """One of `families.tiny_families.CONFIGS`, instead of a shape: matrices in q4_0, q8_0 and f16 in turn."""
    checkpoint: str = ""
    """One of `quantised_files.KINDS`, instead: a directory."""

    @property
    def vocabulary(self) -> int:
        return VOCABULARY if self.family or self.checkpoint else int(self.shape["vocabulary"])


MIXED = {"attn_q.weight": "q4_0", "attn_k.weight": "q8_0", "attn_v.weight": "f16", "ffn_up.weight": "q4_0"}
GROUPED = {
    "width": 96, "heads": 6, "kv_heads": 2, "head_dim": 32, "ffn": 160, "vocabulary": 331, "formats": MIXED
}  # fmt: skip
NARROW = {
    "width": 64, "heads": 4, "kv_heads": 4, "head_dim": 24, "ffn": 96, "vocabulary": 277, "tied": False, "layers": 3
}  # fmt: skip
WIDE = {
    "width": 96, "heads": 4, "kv_heads": 1, "head_dim": 80, "ffn": 224, "vocabulary": 400, "format": "q8_0",
    "layers": 1,
}  # fmt: skip
DENSE = {
    "width": 50, "heads": 3, "kv_heads": 1, "head_dim": 18, "ffn": 77, "vocabulary": 263, "format": "f16",
    "formats": {"ffn_down.weight": "bf16", "attn_output.weight": "f32"}, "embedding_format": "bf16",
}  # fmt: skip
LARGE = {"width": 256, "heads": 4, "kv_heads": 2, "head_dim": 64, "ffn": 256, "vocabulary": 261}
"""Rows of one block of the formats with blocks of 256."""
UNWRITTEN = ("q4_k", "q6_k", "q5_k", "q3_k", "q2_k", "q5_0", "q5_1", "iq4_nl", "iq4_xs", "mxfp4")

WORLDS = {
    "grouped int16 f16": World("int16", "f16", GROUPED),
    "grouped int8 f16": World("int8", "f16", GROUPED),
    "grouped f32 f32": World("f32", "f32", GROUPED),
    "grouped int16 int8": World("int16", "int8", GROUPED),
    "narrow int16 f32": World("int16", "f32", NARROW),
    "narrow int16 int4": World("int16", "int4", NARROW),
    "wide int8 int4": World("int8", "int4", WIDE),
    "dense int16 f16": World("int16", "f16", DENSE),
    "large int16 f16": World("int16", "f16", LARGE, UNWRITTEN),
    "large int8 int8": World("int8", "int8", LARGE, UNWRITTEN[::-1]),
    **{
        f"{family} {activations} {kv_format}": World(activations, kv_format, {}, family=family)
        for family, activations, kv_format in (
            ("qwen2-yarn", "int16", "int8"),
            ("qwen3", "int8", "f16"),
            ("mistral", "int16", "int4"),
            ("gemma2", "int16", "f16"),
            ("gemma3", "int16", "int8"),
            ("phi3-long", "f32", "f32"),
            ("smollm3", "int16", "f16"),
            ("qwen3moe", "int16", "f16"),
            ("olmoe", "int8", "f16"),
            ("gpt-oss", "int16", "f16"),
        )
    },
    **{
        f"{kind} {activations} {kv_format}": World(activations, kv_format, {}, checkpoint=kind)
        for kind, activations, kv_format in (
            ("awq-64", "int8", "f16"),
            ("gptq-act-order", "int16", "f16"),
            ("int8", "int16", "int8"),
            ("fp8-block", "int16", "f16"),
        )
    },
}
"""Named by model, activations and KV format."""


def model_file(directory: Path, name: str) -> Path:
    """Write the model of a world."""
    world = WORLDS[name]
    if world.checkpoint:
        made = KINDS[world.checkpoint].checkpoint()
        made.config["max_position_embeddings"] = 512
        return made.write(directory / name.replace(" ", "-"))
    if world.family:
        turn = cycle(("q4_0", "q8_0", "f16"))
        file = as_gguf(CONFIGS[world.family] | {"max_position_embeddings": 512}, lambda _: next(turn))
    else:
        file = tiny_file(TinyShape(**world.shape))
    path = directory / f"{name.replace(' ', '-')}.gguf"
    path.write_bytes((_in_formats(file, world.formats) if world.formats else file).bytes())
    return path


def _in_formats(file: File, formats: Sequence[str]) -> File:
    rng, turn = np.random.default_rng(0), cycle(formats)
    tensors = [
        _random(rng, tensor, next(turn)) if tensor.name.startswith("blk") and len(tensor.shape) == 2 else tensor
        for tensor in file.tensors
    ]
    return replace(file, tensors=tensors)


def _random(rng: np.random.Generator, tensor: Tensor, name: str) -> Tensor:
    blocks = math.prod(tensor.shape) // FORMATS[name].block
    raw = random_blocks(rng, FORMATS[name], blocks, 1.5 * tensor.shape[1] ** -0.5)
    return replace(tensor, format=name, raw=raw.tobytes())
