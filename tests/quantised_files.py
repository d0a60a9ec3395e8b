"""Writes quantised Hugging Face directories, as AutoAWQ, GPTQ's writers, compressed-tensors and FP8 checkpoints have
them, of random integers; and says what their matrices are.

Written from the formats' descriptions, one element at a time where that is feasible: `word`, `nibble of column` and so
on, apart from `pagoda.catalog`, which works on whole arrays.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from families.tiny_families import CONFIGS, Floats, weights
from hf_files import tensor_bytes, write_model

Array = npt.NDArray[Any]
CONFIG = CONFIGS["llama2"] | {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2}
"""Rows of one and two groups of 128."""


@dataclass(frozen=True)
class Raw:
    """A tensor as a file holds it."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes


def raw(values: Array, dtype: str) -> Raw:
    """Floats and integers by safetensors' names of types."""
    if dtype in ("F32", "F16", "BF16"):
        return Raw(dtype, values.shape, tensor_bytes(values.astype(np.float32), dtype))
    kind = {"I32": "<i4", "I64": "<i8", "I8": "i1"}.get(dtype, "u1")
    return Raw(dtype, values.shape, values.astype(kind).tobytes())


def raw_safetensors(tensors: Mapping[str, Raw]) -> bytes:
    """A file's bytes."""
    header: dict[str, Any] = {}
    data = b""
    for name, each in tensors.items():
        ends = [len(data), len(data) + len(each.data)]
        header[name] = {"dtype": each.dtype, "shape": list(each.shape), "data_offsets": ends}
        data += each.data
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


@dataclass
class Checkpoint:
    """A directory to be: what it holds, and what its matrices are."""

    config: dict[str, Any]
    tensors: dict[str, Raw]
    dense: dict[str, Floats]

    def write(self, directory: Path) -> Path:
        """As it is."""
        write_model(directory, self.config, {})
        (directory / "model.safetensors").write_bytes(raw_safetensors(self.tensors))
        return directory

    def write_dense(self, directory: Path) -> Path:
        """With the matrices in F32."""
        plain = {key: value for key, value in self.config.items() if key != "quantization_config"}
        return write_model(directory, plain, self.dense)


@dataclass(frozen=True)
class Kind:
    """A way to store matrices."""

    layout: str
    bits: int = 4
    group: int = 128
    """-1: a whole row."""
    symmetric: bool = False
    scales: str = "F16"
    act_order: bool = False
    options: dict[str, Any] = field(default_factory=dict)
    less: int = 0
    dtype: str = "F8_E4M3"
    """Of fp8."""
    per: str = "channel"
    """Of fp8 and int8: tensor, channel, block."""
    name_of_scale: str = "weight_scale"

    def checkpoint(self, ignored: Callable[[str], bool] = lambda name: name == "lm_head") -> Checkpoint:
        """Every matrix but the embedding and what is `ignored`."""
        config = CONFIG | {"quantization_config": self.config()}
        made = Checkpoint(config, {}, {})
        for name, values in weights(CONFIG).items():
            module = name.removesuffix(".weight")
            if not name.endswith("_proj.weight") or ignored(module):
                made.tensors[name], made.dense[name] = raw(values, "F32"), values
                continue
            rng = np.random.default_rng(zlib.crc32(name.encode()))
            parts, made.dense[name] = self.matrix(rng, *values.shape)
            made.tensors |= {f"{module}.{end}": part for end, part in parts.items()}
        return made

    def config(self) -> dict[str, Any]:
        """`quantization_config`."""
        if self.layout == "awq":
            own: dict[str, Any] = {"bits": 4, "group_size": self.group, "version": "gemm", "zero_point": True}
            return {"quant_method": "awq", "modules_to_not_convert": None, **own, **self.options}
        if self.layout == "gptq":
            own = {
                "bits": self.bits, "group_size": self.group, "desc_act": self.act_order, "sym": self.symmetric,
                "checkpoint_format": "gptq" if self.less else "gptq_v2",
            }  # fmt: skip
            return {"quant_method": "gptq", **own, **self.options}
        if self.layout == "fp8":
            own = {"weight_block_size": [128, 128]} if self.per == "block" else {}
            return {"quant_method": "fp8", "activation_scheme": "dynamic", **own, **self.options}
        return self._compressed_tensors() | self.options

    def _compressed_tensors(self) -> dict[str, Any]:
        strategy = "group" if self.layout == "packed" and self.group > 0 else self.per
        weights: dict[str, Any] = {
            "num_bits": self.bits, "type": "float" if self.layout == "float" else "int", "symmetric": self.symmetric,
            "strategy": strategy, "group_size": self.group if strategy == "group" else None,
            "block_structure": [128, 128] if strategy == "block" else None, "dynamic": False,
            "actorder": "group" if self.act_order else None,
        }  # fmt: skip
        weights = {key: value for key, value in weights.items() if value is not None}
        form = {"packed": "pack-quantized", "int8": "int-quantized", "float": "float-quantized"}[self.layout]
        activations = None if self.layout == "packed" else {"num_bits": 8, "strategy": "token", "dynamic": True}
        group = {"targets": ["Linear"], "weights": weights, "input_activations": activations}
        return {
            "quant_method": "compressed-tensors", "format": form, "config_groups": {"group_0": group},
            "ignore": ["lm_head"], "quantization_status": "compressed",
        }  # fmt: skip

    # --- a matrix ----------------------------------------------------------------------------------------------------

    def matrix(self, rng: np.random.Generator, n: int, k: int) -> tuple[dict[str, Raw], Floats]:
        """Its tensors by the ends of their names, and what it is."""
        if self.layout in ("fp8", "float"):
            return self._floats(rng, n, k)
        group = self.group if self.group > 0 else k
        count = 1 if self.layout == "int8" else k // group
        g_idx = np.arange(k) // group if count > 1 else np.zeros(k, np.int64)
        if self.act_order:
            rng.shuffle(g_idx)
        top, middle = (1 << self.bits) - 1, 1 << (self.bits - 1)
        q = rng.integers(0, top + 1, (n, k))
        z = rng.integers(self.less, top + 1 + self.less, (n, count))
        if self.symmetric:
            z = np.full((n, count), middle)
        size = 1.5 * k**-0.5 / (0.3 * top) * rng.uniform(0.5, 1.5, (n, count) if self.per != "tensor" else (1, 1))
        scales = decoded(raw(size, self.scales))
        z = z if self.symmetric else z // 4 + middle - middle // 4  # not too far from the middle
        wide = np.broadcast_to(scales, (n, count))
        values = np.empty((n, k), np.float32)
        for j in range(k):  # f32(scale) * (q - z), rounded once
            values[:, j] = wide[:, g_idx[j]] * (q[:, j] - z[:, g_idx[j]]).astype(np.float32)
        return getattr(self, f"_{self.layout}")(q, z, scales, g_idx), values

    def _awq(self, q: Array, z: Array, scales: Array, g_idx: Array) -> dict[str, Raw]:
        """[k, n / 8] words; nibble i of a word is column (0, 2, 4, 6, 1, 3, 5, 7)[i] of its eight."""
        columns = (0, 2, 4, 6, 1, 3, 5, 7)

        def packed(x: Array) -> Raw:
            words = np.zeros((x.shape[0], x.shape[1] // 8), np.uint32)
            for word in range(words.shape[1]):
                for nibble, column in enumerate(columns):
                    words[:, word] |= (x[:, word * 8 + column].astype(np.uint32)) << np.uint32(4 * nibble)
            return raw(words.view(np.int32), "I32")

        return {"qweight": packed(q.T), "qzeros": packed(z.T), "scales": raw(scales.T, self.scales)}

    def _gptq(self, q: Array, z: Array, scales: Array, g_idx: Array) -> dict[str, Raw]:
        """[k * bits / 32, n] words along the inputs; zero points [groups, n * bits / 32], less 1 in old files."""
        zeros = in_words((z - self.less).T, self.bits)
        return {
            "qweight": raw(in_words(q, self.bits).T, "I32"), "qzeros": raw(zeros, "I32"),
            "scales": raw(scales.T, self.scales), "g_idx": raw(g_idx, "I32"),
        }  # fmt: skip

    def _packed(self, q: Array, z: Array, scales: Array, g_idx: Array) -> dict[str, Raw]:
        """[n, k * bits / 32] words along the inputs; zero points along the outputs."""
        parts = {
            "weight_packed": raw(in_words(q, self.bits), "I32"), "weight_scale": raw(scales, self.scales),
            "weight_shape": raw(np.array(q.shape), "I64"),
        }  # fmt: skip
        if not self.symmetric:
            parts["weight_zero_point"] = raw(in_words(z.T, self.bits).T, "I32")
        if self.act_order:
            parts["weight_g_idx"] = raw(g_idx, "I32")
        return parts

    def _int8(self, q: Array, z: Array, scales: Array, g_idx: Array) -> dict[str, Raw]:
        parts = {"weight": raw(q - 128, "I8"), "weight_scale": raw(scales, self.scales)}
        if not self.symmetric:
            parts["weight_zero_point"] = raw(z - 128, "I8")
        return parts

    def _floats(self, rng: np.random.Generator, n: int, k: int) -> tuple[dict[str, Raw], Floats]:
        largest = 0x7E if self.dtype == "F8_E4M3" else 0x7B
        codes = rng.integers(0, largest + 1, (n, k)) | rng.choice([0, 128], (n, k))
        numbers = np.array([eight_bits(code, self.dtype) for code in range(256)], np.float32)
        spread = float(np.std(numbers[codes]))
        rows, columns = {"tensor": (n, k), "channel": (1, k), "block": (128, 128)}[self.per]
        shape = (-(-n // rows), -(-k // columns))
        size = 1.5 * k**-0.5 / spread * rng.uniform(0.5, 1.5, shape)
        if self.scales == "F8_E8M0":
            exponents = np.rint(np.log2(size)).astype(np.int64)
            stored, scales = raw(exponents + 127, "F8_E8M0"), np.float32(2) ** exponents.astype(np.float32)
        else:
            stored = raw(size, self.scales)
            scales = decoded(stored)
        values = scales.repeat(rows, 0)[:n].repeat(columns, 1)[:, :k] * numbers[codes]
        if self.per == "tensor":
            stored = replace(stored, shape=())
        return {"weight": raw(codes, self.dtype), self.name_of_scale: stored}, values


def in_words(x: Array, bits: int) -> Array:
    """[rows, columns] of integers -> [rows, ceil(columns * bits / 32)] words, the first in the lowest bits."""
    per = 32 // bits
    words = np.zeros((x.shape[0], -(-x.shape[1] // per)), np.uint32)
    for column in range(x.shape[1]):
        words[:, column // per] |= (x[:, column].astype(np.uint32) & np.uint32((1 << bits) - 1)) << np.uint32(
            bits * (column % per)
        )
    return words.view(np.int32)


def decoded(stored: Raw) -> Floats:
    """What floats stand for."""
    if stored.dtype == "BF16":
        return (np.frombuffer(stored.data, "<u2").astype(np.uint32) << 16).view(np.float32).reshape(stored.shape)
    kind = {"F32": "<f4", "F16": "<f2"}[stored.dtype]
    return np.frombuffer(stored.data, kind).astype(np.float32).reshape(stored.shape)


def eight_bits(code: int, dtype: str) -> float:
    """An 8-bit float by its definition (OCP 8-bit Floating Point Specification): sign, exponent, mantissa."""
    exponent_bits, mantissa_bits = (4, 3) if dtype == "F8_E4M3" else (5, 2)
    sign = -1.0 if code & 128 else 1.0
    exponent = code >> mantissa_bits & ((1 << exponent_bits) - 1)
    mantissa = (code & ((1 << mantissa_bits) - 1)) / (1 << mantissa_bits)
    bias = (1 << (exponent_bits - 1)) - 1
    return sign * (2.0 ** (exponent - bias) * (1 + mantissa) if exponent else 2.0 ** (1 - bias) * mantissa)


KINDS: dict[str, Kind] = {
    **{f"awq-{group}": Kind("awq", group=group) for group in (32, 64, 128, -1)},
    "gptq-sym": Kind("gptq", symmetric=True, less=1),
    "gptq-asym": Kind("gptq", less=1),
    "gptq-v2": Kind("gptq", group=64),
    "gptq-row": Kind("gptq", group=-1, less=1),
    "gptq-8-sym": Kind("gptq", bits=8, symmetric=True, less=1),
    "gptq-8-asym": Kind("gptq", bits=8, less=1, group=32),
    "gptq-8-v2": Kind("gptq", bits=8),
    "gptq-bf16": Kind("gptq", symmetric=True, scales="BF16"),
    "gptq-act-order": Kind("gptq", less=1, act_order=True),
    "gptq-act-order-sym": Kind("gptq", group=32, symmetric=True, act_order=True, less=1),
    "packed-sym": Kind("packed", symmetric=True, scales="BF16"),
    "packed-sym-f16": Kind("packed", symmetric=True, group=64),
    "packed-asym": Kind("packed", scales="BF16", group=32),
    "packed-row": Kind("packed", group=-1, symmetric=True, scales="BF16"),
    "packed-row-asym": Kind("packed", group=-1, scales="F32"),
    "packed-8": Kind("packed", bits=8, scales="BF16"),
    "packed-act-order": Kind("packed", symmetric=True, act_order=True, scales="BF16", group=64),
    "int8": Kind("int8", bits=8, symmetric=True, scales="BF16"),
    "int8-f16": Kind("int8", bits=8, symmetric=True),
    "int8-f32": Kind("int8", bits=8, symmetric=True, scales="F32"),
    "int8-tensor": Kind("int8", bits=8, symmetric=True, per="tensor"),
    "int8-asym": Kind("int8", bits=8, scales="F32"),
    "fp8-block": Kind("fp8", per="block", scales="F32", name_of_scale="weight_scale_inv"),
    "fp8-block-e8m0": Kind("fp8", per="block", scales="F8_E8M0", name_of_scale="weight_scale_inv"),
    "fp8-tensor": Kind("fp8", per="tensor", scales="F32", options={"activation_scheme": "static"}),
    "fp8-channel": Kind("fp8", scales="BF16", options={"quant_method": "fbgemm_fp8"}),
    "fp8-e5m2": Kind("fp8", per="tensor", dtype="F8_E5M2", scales="F32"),
    "float-tensor": Kind("float", bits=8, symmetric=True, per="tensor", scales="BF16"),
    "float-channel": Kind("float", bits=8, symmetric=True, scales="BF16"),
    "float-block": Kind("float", bits=8, symmetric=True, per="block", scales="BF16"),
}
