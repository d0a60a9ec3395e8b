"""Quantised matrices of Hugging Face directories: the tensors that make one up, checked against each other.

A matrix [n, k] is several tensors of a safetensors file: integers or 8-bit floats, scales, zero points, the inputs'
groups. What they mean is in `hf_scheme.Weights`; hf_blocks.py makes blocks of our formats from them. Symmetric integers
with f16 scales become q4_0 and q8_0; others q4_z and q8_z, with the scale in f32, which holds f16 and bf16 exactly.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NoReturn

import numpy as np

from pagoda import quant
from pagoda.backends.ops import Bytes, Ints, StoredFormat
from pagoda.catalog.hf_scheme import Scheme, Weights
from pagoda.catalog.safetensors import Entry
from pagoda.errors import ModelFileError, UnsupportedModel

BLOCK = 32
SCALES = ("F16", "BF16", "F32", "F8_E8M0")
PARTS = {
    "awq": ("qweight", "qzeros", "scales"),
    "gptq": ("qweight", "qzeros", "scales", "g_idx"),
    "packed": ("weight_packed", "weight_scale", "weight_zero_point", "weight_shape", "weight_g_idx"),
    "int8": ("weight", "weight_scale", "weight_zero_point"),
    "fp8": ("weight", "weight_scale", "weight_scale_inv"),
}
"""Ends of names, by layout."""
UNREAD = (
    "input_scale", "input_zero_point", "input_scale_ub", "input_global_scale", "activation_scale", "output_scale",
    "k_scale", "v_scale", "q_scale",
)  # fmt: skip
"""Ends of names of what says how to quantise activations, keys and values: ours have formats of their own."""


@dataclass(frozen=True, slots=True)
class Plan:
    """A matrix to be put together."""

    module: str
    """For messages: the checkpoint's name."""
    weights: Weights
    parts: Mapping[str, Entry]
    """By the end of its name."""
    shape: tuple[int, int]
    group: int
    """Inputs that share a scale."""
    form: StoredFormat
    order: Ints | None
    """The input that each column is of, if not in the inputs' order."""
    groups: Ints | None
    """[k / 32] of each block of 32 columns, if not in order."""
    path: str

    def fail(self, message: str) -> NoReturn:
        """Raise `ModelFileError`, naming the module."""
        raise ModelFileError(f"{self.path}: {self.module!r:.200}: {message}")


def plan(
    module: str, scheme: Scheme, entries: Mapping[str, Entry], path: str, read: Callable[[Entry], Bytes]
) -> Plan | None:
    """What a module's tensors make up; None if its matrix is not quantised.

    Args:
        module: as in `model.layers.0.mlp.up_proj`.
        entries: all tensors of the checkpoint.
        path: for messages.
        read: a tensor's bytes: asked for those of the inputs' groups alone.

    Raises:
        ModelFileError: a tensor is missing, or of another shape or type than it must be.
        UnsupportedModel: rows that are no whole blocks.
    """
    weights = scheme.weights(module)
    quantised = any(f"{module}.{main}" in entries for main in ("qweight", "weight_packed"))
    dense = entries.get(f"{module}.weight")
    if not quantised and (dense is None or dense.dtype in ("F16", "BF16", "F32")):
        return None
    what = f"{path}: {module!r:.200}"
    if weights is None or scheme.ignores(module):
        raise ModelFileError(f"{what} is quantised, and quantization_config says that it is not")
    names = PARTS[weights.layout]
    parts = {name: entries[f"{module}.{name}"] for name in names if f"{module}.{name}" in entries}
    if names[0] not in parts:
        raise ModelFileError(f"{what}: tensor {module + '.' + names[0]!r} is missing: {scheme.method} weights have one")
    return _Planner(module, weights, parts, path, read).plan()


class _Planner:
    """Checks what a matrix is made of."""

    def __init__(
        self, module: str, weights: Weights, parts: Mapping[str, Entry], path: str, read: Callable[[Entry], Bytes]
    ) -> None:
        self.module, self.weights, self.parts, self.path, self._read = module, weights, parts, path, read

    def fail(self, message: str) -> NoReturn:
        raise ModelFileError(f"{self.path}: {self.module!r:.200}: {message}")

    def part(self, name: str, dtypes: tuple[str, ...], rank: int | None = None) -> Entry:
        if name not in self.parts:
            self.fail(f"tensor {self.module + '.' + name!r:.200} is missing")
        found = self.parts[name]
        if found.dtype not in dtypes:
            self.fail(f"{name} is in {found.dtype}; it must be in {' or '.join(dtypes)}")
        if rank is not None and (len(found.shape) != rank or 0 in found.shape):
            self.fail(f"{name} has shape {found.shape}; it must have {rank} dimensions")
        return found

    def must(self, name: str, *shapes: tuple[int, ...]) -> None:
        if self.parts[name].shape not in shapes:
            self.fail(f"{name} must have shape {' or '.join(map(str, shapes))}, found {self.parts[name].shape}")

    def plan(self) -> Plan:
        layout = self.weights.layout
        if layout == "fp8":
            return self._fp8()
        shape, scales = {"awq": self._columns, "gptq": self._columns, "packed": self._packed, "int8": self._int8}[
            layout
        ]()
        group = self.weights.group or shape[1]
        self._check_width(shape[1], group, scales)
        groups, order = self._order(shape[1], group, scales)
        return self._plan(shape, group, self._format(shape[1], group, groups), order, groups)

    def _plan(
        self, shape: tuple[int, int], group: int, form: StoredFormat, order: Ints | None, groups: Ints | None
    ) -> Plan:
        return Plan(self.module, self.weights, self.parts, shape, group, form, order, groups, self.path)

    def _check_width(self, width: int, group: int, scales: int) -> None:
        if width % BLOCK:
            raise UnsupportedModel(
                f"{self.path}: {self.module!r:.200}: quantised rows of {width} inputs cannot be read, "
                f"of a multiple of {BLOCK} they can"
            )
        if width % group or scales != width // group:
            self.fail(
                f"quantization_config has groups of {group}, and there are scales for {scales} groups of {width} inputs"
            )

    def _columns(self) -> tuple[tuple[int, int], int]:
        """AWQ and GPTQ: matrices are transposed, eight columns or eight rows to a word."""
        per = 32 // self.weights.bits
        words = self.part("qweight", ("I32",), 2).shape
        scales = self.part("scales", SCALES[:3], 2).shape
        self.part("qzeros", ("I32",), 2)
        n = scales[1]
        if n % per:
            self.fail(f"{n} rows are no whole words of {per}")
        k = words[0] if self.weights.layout == "awq" else words[0] * per
        self.must("qweight", (k, n // per) if self.weights.layout == "awq" else (k // per, n))
        self.must("qzeros", (scales[0], n // per))
        return (n, k), scales[0]

    def _packed(self) -> tuple[tuple[int, int], int]:
        per = 32 // self.weights.bits
        words = self.part("weight_packed", ("I32",), 2).shape
        n, k = words[0], words[1] * per
        scales = self._scales(n)
        if "weight_shape" in self.parts:
            self.part("weight_shape", ("I64", "I32"))
            self.must("weight_shape", (2,))
        if self._has_zeros():
            self.part("weight_zero_point", ("I32", "I8"), 2)
            packed = self.parts["weight_zero_point"].dtype == "I32"
            self.must("weight_zero_point", (-(-n // per), scales) if packed else (n, scales))
        return (n, k), scales

    def _int8(self) -> tuple[tuple[int, int], int]:
        n, k = self.part("weight", ("I8",), 2).shape
        scales = self._scales(n)
        if self._has_zeros():
            self.part("weight_zero_point", ("I8",))
            self.must("weight_zero_point", *((n, scales), self.parts["weight_scale"].shape))
        return (n, k), scales

    def _has_zeros(self) -> bool:
        return not self.weights.symmetric or "weight_zero_point" in self.parts

    def _scales(self, n: int) -> int:
        """How many scales a row has: one of its own, several, or the matrix's."""
        shape = self.part("weight_scale", SCALES[:3]).shape
        if shape in ((), (1,), (n,), (1, 1)):
            return 1
        if len(shape) != 2 or shape[0] != n or shape[1] == 0:
            self.fail(f"weight_scale has shape {shape}; it must have one scale, or some for each of {n} rows")
        return shape[1]

    def _order(self, k: int, group: int, count: int) -> tuple[Ints | None, Ints | None]:
        """(the group of each block of 32 columns, the input of each column) if inputs are in no order (act-order)."""
        name = "g_idx" if self.weights.layout == "gptq" else "weight_g_idx"
        if name not in self.parts:
            return None, None
        self.part(name, ("I32",), 1)
        self.must(name, (k,))
        found = self._read(self.parts[name]).view("<i4")
        if self.weights.layout == "packed" and (found == -1).all():
            return None, None
        if not 0 <= found.min() <= found.max() < count:
            self.fail(f"{name} names groups {found.min()} to {found.max()}; there are 0 to {count - 1}")
        if np.array_equal(found, np.arange(k) // group):
            return None, None
        order = np.argsort(found, kind="stable").astype(np.int32)
        blocks = found[order].reshape(-1, BLOCK)
        if (blocks != blocks[:, :1]).any():
            sizes = np.bincount(found, minlength=count)
            self.fail(f"{name} has groups of {sizes.min()} to {sizes.max()} inputs; they must be multiples of {BLOCK}")
        if ".experts." in self.module:
            raise UnsupportedModel(f"{self.path}: {self.module!r:.200}: experts in act-order cannot be read")
        return blocks[:, 0].astype(np.int32), order

    def _format(self, k: int, group: int, groups: Ints | None) -> StoredFormat:
        scale = self.parts["scales" if self.weights.layout in ("awq", "gptq") else "weight_scale"]
        if self.weights.symmetric and scale.dtype == "F16":
            return quant.by_name("q4_0" if self.weights.bits == 4 else "q8_0")
        whole = group % 128 == 0 if groups is None else _same(groups, 4)
        return (quant.Q4_Z if self.weights.bits == 4 else quant.Q8_Z)[128 if whole and k % 128 == 0 else BLOCK]

    def _fp8(self) -> Plan:
        entry = self.part("weight", tuple(quant.F8S), 2)
        n, k = entry.shape
        name = "weight_scale" if "weight_scale" in self.parts else "weight_scale_inv"
        shape = self.part(name, SCALES).shape
        self._check_width(k, k, 1)
        rows, columns = self.weights.blocks or (1, k)
        blocked = (-(-n // rows), -(-k // columns))
        if self.weights.blocks and shape == blocked:
            pass
        elif shape not in ((), (1,), (1, 1), (n,), (n, 1)):
            self.fail(
                f"{name} has shape {shape}; it must have one scale, {n}, or {blocked} of blocks {rows} x {columns}"
            )
        return self._plan((n, k), columns, quant.F8S[entry.dtype], None, None)


def _same(groups: Ints, run: int) -> bool:
    """Whether runs of so many are of one group each."""
    if len(groups) % run:
        return False
    runs = groups.reshape(-1, run)
    return bool((runs == runs[:, :1]).all())
