"""Write a GGUF of random weights, shaped as a Llama or a mixture, to measure speed and memory at any size.

    python benchmarks/make_model.py OUT.gguf                        # 1.24 G weights, as Llama 3.2 1B is shaped, q4_0
    python benchmarks/make_model.py OUT.gguf --shape tiny --mix q4_k_m --seed 7
    python benchmarks/make_model.py OUT.gguf --shape olmoe --layers 4   # 64 experts, 8 of them for each token

The blocks are drawn in their packed form (random codes, one f16 scale a block), so nothing is quantised, a 700 MB file
takes seconds, and memory stays at a few chunks. Their size is chosen so that activations stay near one: a weight's
standard deviation is 1 / sqrt(inputs), less where a layer writes into the residual stream. The text that such a model
makes is noise; its arithmetic, memory and tokens a second are those of a real one. Equal arguments give equal bytes,
on any NumPy: only the raw words of PCG64 are used.

Mixes: q4_0, q4_1 and q8_0 use that format for every matrix but the embedding, which is Q8_0; q4_k_m uses Q4_K and, as
llama.cpp does, Q6_K for the embedding and for v and down in half of the layers. The embedding also projects to the
vocabulary (tied), except in mixtures: these are OLMoEs, with an output matrix in the embedding's format and an f32
router. The tokenizer is byte-level BPE with 256 bytes, a few hundred merges and unused entries to fill up.
Layouts: the GGUF specification, version 3, and the block layouts of ggml. Needs NumPy alone.
"""

from __future__ import annotations

import argparse
import json
import math
import struct
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]
ALIGN = 32
CHUNK = 1 << 22  # packed bytes drawn at once
NORMAL, CONTROL, UNUSED = 1, 3, 5  # token types
TEMPLATE = (
    "{% for message in messages %}{{ '<|start|>' + message['role'] + '\n' + message['content'] + '<|end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|start|>assistant\n' }}{% endif %}"
)


@dataclass(frozen=True)
class Shape:
    """The sizes of a Llama model, or, with experts, of an OLMoE; head size is width / heads."""

    layers: int
    width: int
    heads: int
    kv_heads: int
    ffn: int
    vocab: int
    context: int
    experts: int = 0
    chosen: int = 0
    """Experts for each token, of `ffn` each."""

    @property
    def architecture(self) -> str:
        """As GGUF calls it."""
        return "olmoe" if self.experts else "llama"


SHAPES = {
    "1b": Shape(16, 2048, 32, 8, 8192, 128_256, 8192),
    "smollm2": Shape(30, 576, 9, 3, 1536, 49_152, 8192),
    "tiny": Shape(2, 256, 4, 2, 512, 1280, 1024),
    "olmoe": Shape(16, 2048, 16, 16, 1024, 50_304, 4096, 64, 8),
    "tiny-moe": Shape(2, 256, 4, 4, 256, 1280, 1024, 8, 2),
}


class Words:
    """Deterministic random bytes."""

    def __init__(self, seed: int, stream: int) -> None:
        self.source = np.random.PCG64(np.random.SeedSequence((seed, stream)))

    def bytes(self, rows: int, columns: int) -> Bytes:
        """Random bytes [rows, columns]."""
        words = self.source.random_raw((rows * columns + 7) // 8)
        return np.asarray(words).astype("<u8").view(np.uint8)[: rows * columns].reshape(rows, columns)

    def scales(self, rows: int, size: float, signed: bool) -> npt.NDArray[np.float16]:
        """Block scales [rows, 1]: root mean square `size`, within a quarter of it, either sign if `signed`."""
        raw = self.bytes(rows, 2)
        scale = size * (0.75 + raw[:, 0] / 510.0) / math.sqrt(1.0 + 1.0 / 48.0)
        if signed:
            scale = np.where(raw[:, 1] & 1, scale, -scale)
        return scale.astype("<f2").reshape(rows, 1)


def f32(words: Words, count: int, size: float) -> Bytes:
    """Norm weights: `size`, give or take a tenth. A block is one value."""
    values = size * (0.9 + words.bytes(count, 1) / 1275.0)
    return values.astype("<f4").view(np.uint8)


def f32_matrix(words: Words, count: int, size: float) -> Bytes:
    """A router's weights: sums of four bytes, nearly normal. A block is one value."""
    values = (words.bytes(count, 4).sum(axis=1, dtype=np.int64) - 510) * (size / math.sqrt(4 * 5461.25))
    return values.astype("<f4").view(np.uint8).reshape(count, 4)


def q4_0(words: Words, count: int, size: float) -> Bytes:
    """32 weights: f16 d, 16 bytes of 4-bit codes q; d (q - 8). The sign of d is random: the codes' mean is not 8."""
    scale = words.scales(count, size / math.sqrt(21.5), signed=True)
    return np.hstack([scale.view(np.uint8), words.bytes(count, 16)])


def q4_1(words: Words, count: int, size: float) -> Bytes:
    """32 weights: f16 d, f16 m, 16 bytes of 4-bit codes q; d q + m, with m = -7.5 d."""
    scale = words.scales(count, size / math.sqrt(21.25), signed=False)
    low = (scale.astype(np.float32) * -7.5).astype("<f2")
    return np.hstack([scale.view(np.uint8), low.view(np.uint8), words.bytes(count, 16)])


def q8_0(words: Words, count: int, size: float) -> Bytes:
    """32 weights: f16 d, 32 signed bytes q; d q."""
    scale = words.scales(count, size / math.sqrt(5397.5), signed=True)
    codes = words.bytes(count, 32)
    return np.hstack([scale.view(np.uint8), np.where(codes == 128, np.uint8(0), codes)])  # a quantiser never makes -128


def q4_k(words: Words, count: int, size: float) -> Bytes:
    """256 weights: f16 d, f16 dmin, 8 scales s and 8 minima m of 6 bits, 128 bytes of codes q; d s q - dmin m.

    m = s and dmin = 7.5 d, so that the mean is nought.
    """
    scale = words.scales(count, size / math.sqrt(21.25 * 2341.5), signed=False)
    low = (scale.astype(np.float32) * 7.5).astype("<f2")
    six = (words.bytes(count, 8) & 31) + 32
    first, last = six[:, :4], six[:, 4:]
    packed = first | (last >> 4 << 6)  # the same for scales and minima
    return np.hstack(
        [scale.view(np.uint8), low.view(np.uint8), packed, packed, (last & 15) * 17, words.bytes(count, 128)]
    )


def q6_k(words: Words, count: int, size: float) -> Bytes:
    """256 weights: 192 bytes of 6-bit codes q, 16 signed scales s, f16 d; d s (q - 32)."""
    scale = words.scales(count, size / math.sqrt(341.5 * 9461.5), signed=False)
    signs = words.bytes(count, 16)
    sub = ((signs & 63) + 64).astype(np.int8)
    sub = np.where(signs & 64, sub, -sub).astype(np.int8)
    return np.hstack([words.bytes(count, 192), sub.view(np.uint8), scale.view(np.uint8)])


@dataclass(frozen=True)
class Format:
    """One GGUF tensor type."""

    code: int
    weights: int  # in a block
    size: int  # bytes of a block
    draw: Callable[[Words, int, float], Bytes]


FORMATS = {
    "f32": Format(0, 1, 4, f32),
    "f32_matrix": Format(0, 1, 4, f32_matrix),
    "q4_0": Format(2, 32, 18, q4_0),
    "q4_1": Format(3, 32, 20, q4_1),
    "q8_0": Format(8, 32, 34, q8_0),
    "q4_k": Format(12, 256, 144, q4_k),
    "q6_k": Format(14, 256, 210, q6_k),
}
MIXES = {"q4_0": 2, "q4_1": 3, "q8_0": 7, "q4_k_m": 15}  # name -> general.file_type


@dataclass(frozen=True)
class Tensor:
    """One tensor to be written: its dimensions are GGUF's, innermost first."""

    name: str
    format: Format
    dims: tuple[int, ...]
    deviation: float

    def blocks(self) -> int:
        """Blocks in the tensor; its rows must be whole blocks."""
        if self.dims[0] % self.format.weights:
            raise SystemExit(f"{self.name}: rows of {self.dims[0]} are not whole blocks of {self.format.weights}")
        return math.prod(self.dims) // self.format.weights

    def bytes(self) -> int:
        """Bytes of the tensor in the file, without padding."""
        return self.blocks() * self.format.size


def tensors(shape: Shape, mix: str) -> Iterator[Tensor]:
    """Every tensor of the model, in the file's order."""
    usual, better = ("q4_k", "q6_k") if mix == "q4_k_m" else (mix, mix)
    head = shape.width // shape.heads
    residual = 1.0 / math.sqrt(2 * shape.layers)

    def matrix(name: str, kind: str, inputs: int, outputs: int, gain: float = 1.0, *experts: int) -> Tensor:
        return Tensor(name + ".weight", FORMATS[kind], (inputs, outputs, *experts), gain / math.sqrt(inputs))

    def vector(name: str) -> Tensor:
        return Tensor(name + ".weight", FORMATS["f32"], (shape.width,), 1.0)

    # twice the size: logits with a deviation of two, so that next-token distributions have a shape
    outer = "q6_k" if mix == "q4_k_m" else "q8_0"
    yield matrix("token_embd", outer, shape.width, shape.vocab, 2.0)
    for i in range(shape.layers):
        at = f"blk.{i}."
        eighth = shape.layers // 8
        rich = better if i < eighth or i >= 7 * eighth or (i - eighth) % 3 == 2 else usual  # llama.cpp's use_more_bits
        yield vector(at + "attn_norm")
        yield matrix(at + "attn_q", usual, shape.width, shape.heads * head)
        yield matrix(at + "attn_k", usual, shape.width, shape.kv_heads * head)
        yield matrix(at + "attn_v", rich, shape.width, shape.kv_heads * head)
        yield matrix(at + "attn_output", usual, shape.heads * head, shape.width, residual)
        yield vector(at + "ffn_norm")
        each, which = ((shape.experts,), "_exps") if shape.experts else ((), "")
        if shape.experts:
            yield vector(at + "attn_q_norm")
            yield vector(at + "attn_k_norm")
            yield matrix(at + "ffn_gate_inp", "f32_matrix", shape.width, shape.experts)
        yield matrix(f"{at}ffn_gate{which}", usual, shape.width, shape.ffn, 1.0, *each)
        yield matrix(f"{at}ffn_up{which}", usual, shape.width, shape.ffn, 1.0, *each)
        yield matrix(f"{at}ffn_down{which}", rich, shape.ffn, shape.width, residual, *each)
    yield vector("output_norm")
    if shape.experts:
        yield matrix("output", outer, shape.width, shape.vocab, 2.0)


def alphabet() -> list[str]:
    """The 256 byte tokens of GPT-2's byte-level vocabulary, by byte."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = iter(range(256, 512))
    return [chr(b) if b in shown else chr(next(hidden)) for b in range(256)]


def vocabulary(size: int) -> tuple[list[str], list[int], list[str]]:
    """Tokens, their types and the merges: two special tokens, bytes, a space or a letter and a letter, unused ones."""
    letters = [chr(c) for c in range(ord("a"), ord("z") + 1)]
    space = alphabet()[ord(" ")]
    merges = [f"{a} {b}" for a in [space, *letters] for b in letters]
    tokens = ["<|start|>", "<|end|>", *alphabet()]
    if size < len(tokens):
        raise SystemExit(f"a vocabulary of {size} is too small: {len(tokens)} at least")
    merges = merges[: size - len(tokens)]
    tokens += [merge.replace(" ", "") for merge in merges]
    used = len(tokens)
    tokens += [f"<|unused_{i}|>" for i in range(used, size)]
    return tokens, [CONTROL, CONTROL] + [NORMAL] * (used - 2) + [UNUSED] * (size - used), merges


def metadata(shape: Shape, mix: str, name: str) -> dict[str, Any]:
    """The key-value part of the file."""
    tokens, kinds, merges = vocabulary(shape.vocab)
    name_of = shape.architecture
    mixture = {f"{name_of}.expert_count": shape.experts, f"{name_of}.expert_used_count": shape.chosen}
    return {
        "general.architecture": name_of,
        "general.name": name,
        "general.file_type": MIXES[mix],
        "general.quantization_version": 2,
        f"{name_of}.block_count": shape.layers,
        f"{name_of}.context_length": shape.context,
        f"{name_of}.embedding_length": shape.width,
        f"{name_of}.feed_forward_length": shape.ffn,
        f"{name_of}.attention.head_count": shape.heads,
        f"{name_of}.attention.head_count_kv": shape.kv_heads,
        f"{name_of}.attention.layer_norm_rms_epsilon": 1e-5,
        f"{name_of}.rope.dimension_count": shape.width // shape.heads,
        f"{name_of}.rope.freq_base": 500_000.0,
        f"{name_of}.vocab_size": shape.vocab,
        **(mixture if shape.experts else {}),
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": kinds,
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.bos_token_id": 0,
        "tokenizer.ggml.eos_token_id": 1,
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.chat_template": TEMPLATE,
    }


def text(value: str) -> bytes:
    """A GGUF string."""
    raw = value.encode()
    return struct.pack("<Q", len(raw)) + raw


def value(item: Any) -> bytes:
    """A GGUF value with its type in front; integers are u32 (i32 in lists)."""
    if isinstance(item, bool):
        return struct.pack("<I?", 7, item)
    if isinstance(item, int):
        return struct.pack("<II", 4, item)
    if isinstance(item, float):
        return struct.pack("<If", 6, item)
    if isinstance(item, str):
        return struct.pack("<I", 8) + text(item)
    if all(isinstance(entry, str) for entry in item):
        return struct.pack("<IIQ", 9, 8, len(item)) + b"".join(map(text, item))
    return struct.pack("<IIQ", 9, 5, len(item)) + np.array(item, "<i4").tobytes()


def padding(size: int) -> int:
    """Bytes from `size` to the next aligned place."""
    return -size % ALIGN


def write_header(out: BinaryIO, meta: dict[str, Any], all_tensors: list[Tensor]) -> None:
    """Magic, counts, metadata and the table of tensors, padded."""
    parts = [b"GGUF", struct.pack("<IQQ", 3, len(all_tensors), len(meta))]
    parts += [text(key) + value(item) for key, item in meta.items()]
    offset = 0
    for tensor in all_tensors:
        parts.append(text(tensor.name) + struct.pack("<I", len(tensor.dims)))
        parts.append(struct.pack(f"<{len(tensor.dims)}QIQ", *tensor.dims, tensor.format.code, offset))
        offset += tensor.bytes() + padding(tensor.bytes())
    header = b"".join(parts)
    out.write(header + bytes(padding(len(header))))


def write_tensor(out: BinaryIO, tensor: Tensor, words: Words) -> None:
    """The tensor's blocks, a chunk at a time, padded."""
    left, step = tensor.blocks(), CHUNK // tensor.format.size
    while left:
        count = min(left, step)
        out.write(np.ascontiguousarray(tensor.format.draw(words, count, tensor.deviation)).data)
        left -= count
    out.write(bytes(padding(tensor.bytes())))


def make(out: Path, shape: Shape, mix: str, seed: int, name: str) -> dict[str, Any]:
    """Write the model to `out`; what was written, as plain figures."""
    began = time.perf_counter()
    listed = list(tensors(shape, mix))
    with out.open("wb") as file:
        write_header(file, metadata(shape, mix, name), listed)
        for stream, tensor in enumerate(listed):
            write_tensor(file, tensor, Words(seed, stream))
    weights = sum(math.prod(tensor.dims) for tensor in listed)
    taken = round(time.perf_counter() - began, 2)
    return {
        "file": out.name,
        "bytes": out.stat().st_size,
        "weights": weights,
        "mix": mix,
        "seed": seed,
        "seconds": taken,
    }


def main() -> None:
    """Command line; the last line is JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--shape", choices=sorted(SHAPES), default="1b")
    parser.add_argument("--mix", choices=sorted(MIXES), default="q4_0")
    parser.add_argument("--layers", type=int, help="other than the shape's, so that a large one fits into memory")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    shape = SHAPES[args.shape] if args.layers is None else replace(SHAPES[args.shape], layers=args.layers)
    name = f"random {shape.architecture} {args.shape} {args.mix} seed {args.seed}"
    print(json.dumps(make(args.out, shape, args.mix, args.seed, name)))


if __name__ == "__main__":
    main()
