"""The reference backend: NumPy, float64 inside every verb, slow and obviously right.

What it computes is what docs/arithmetic.md says, without the order of summation: other backends must come within a
tolerance of it. Values between verbs are rounded to f32. A program runs its verbs as they are called, so a mistake in
a model shows in the traceback, at its verb. It also checks what faster backends take on trust: every shape, and the
step's order, ids and positions.

It knows nothing of models, requests or formats: a stored tensor dequantizes itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any, get_args

import numpy as np
import numpy.typing as npt

from pagoda.backends.ops import (
    Activation,
    Bytes,
    Draw,
    Experts,
    Floats,
    Ints,
    KVGroup,
    KVLayer,
    KVStore,
    Ops,
    RopeTable,
    Routing,
    Rows,
    Slots,
    Step,
    StepOutput,
    StoredTensor,
    Unit,
)
from pagoda.backends.reference_step import check_step, draw_rows, known_ids, writes
from pagoda.backends.reference_store import ReferenceKVStore, ReferenceSlots, ReferenceTransfer
from pagoda.config import ACTIVATIONS, KV_FORMATS
from pagoda.errors import InvalidConfig, MemoryLimit

Doubles = npt.NDArray[np.float64]

UNQUANTISED = ("f32", "f16", "bf16", "f8_e4m3", "f8_e5m2")
"""Weight formats that read activations as they are."""
ACTS = get_args(Activation)
BLOCK = 32
"""Activations are quantised in runs of this many."""
TOPS = {"int8": 127, "int16": 32767}
"""The largest integer of each kind of activation."""


@dataclass(frozen=True, slots=True, eq=False)
class ReferenceWeight:
    """A dequantized weight, [n, k] or [k]."""

    name: str
    values: Floats
    quantised: bool
    """Whether its file's format is a quantised one, of integers."""
    order: Ints | None = None
    """[k] the input that each column is of, if not in the inputs' order."""


def quantise_rows(x: Floats, top: int) -> Doubles:
    """x [rows, k] as the integer paths read it: q * d for each block of 32 (the last may be shorter), d = max|x| / top.

    `top` is 127 or 32767. q is x * (top / max|x|) rounded to the nearest integer, ties to even. All of this is f32
    arithmetic, so that the integers equal those of native code; the product q * d is exact. A block whose max|x| is
    1e-33 or less counts as zeros.
    """
    result = np.zeros(x.shape, np.float64)
    for start in range(0, x.shape[1], BLOCK):
        block = x[:, start : start + BLOCK]
        amax = np.abs(block).max(axis=1, keepdims=True)
        large = amax > np.float32(1e-33)
        inverse = np.where(large, np.float32(top) / np.where(large, amax, np.float32(1)), np.float32(0))
        q = np.rint(block * inverse)
        d = amax / np.float32(top)
        result[:, start : start + BLOCK] = q.astype(np.float64) * d
    return result


class ReferenceOps:
    """The verbs of one run: each computes at once. Values are f32 arrays [rows, width]."""

    def __init__(self, kv: ReferenceKVStore, step: Step, activations: str) -> None:
        self.outputs: dict[str, Floats] = {}
        self._kv = kv
        self._step = step
        self._activations = activations

    def embed(self, weight: ReferenceWeight) -> Floats:
        """Rows `Step.ids` of weight."""
        ids, size = self._step.ids, len(weight.values)
        if not 0 <= ids.min() <= ids.max() < size:
            raise ValueError(f"token ids run from 0 to {size - 1} in {weight.name}, got {ids.tolist()}")
        return weight.values[ids]

    def linear(
        self,
        x: Floats,
        weights: ReferenceWeight | Sequence[ReferenceWeight],
        site: str = "",  # noqa: ARG002
        bias: ReferenceWeight | Sequence[ReferenceWeight] | None = None,
    ) -> Any:
        """x @ W.T + b, x as blocks of integers if W is quantised and activations are. `site` changes nothing here."""
        if isinstance(weights, ReferenceWeight):
            assert bias is None or isinstance(bias, ReferenceWeight)
            return self._biased(self._product(x, weights), bias)
        biases = [None] * len(weights) if bias is None else bias
        assert not isinstance(biases, ReferenceWeight)
        return tuple(self._biased(self._product(x, w), b) for w, b in zip(weights, biases, strict=True))

    def _biased(self, x: Floats, bias: ReferenceWeight | None) -> Floats:
        if bias is None:
            return x
        if bias.values.shape != x.shape[1:]:
            raise ValueError(f"{bias.name} is {bias.values.shape}, what it is added to {x.shape}")
        return x + bias.values

    def _product(self, x: Floats, weight: ReferenceWeight) -> Floats:
        if x.shape[1:] != weight.values.shape[1:]:
            raise ValueError(f"{weight.name} is {weight.values.shape}, its input {x.shape}")
        top = TOPS.get(self._activations) if weight.quantised else None
        if weight.order is not None:
            x = x[:, weight.order]
        read = quantise_rows(x, top) if top else x.astype(np.float64)
        product: Doubles = read @ weight.values.T.astype(np.float64)
        return product.astype(np.float32)

    def norm(self, x: Floats, weight: ReferenceWeight, eps: float, heads: int = 1) -> Floats:
        """x / sqrt(mean(x^2) + eps) * weight, for each of `heads` parts of a row."""
        if (x.shape[1],) != (heads * weight.values.size,):
            raise ValueError(f"{weight.name} is {weight.values.shape}, its input {x.shape} of {heads} heads")
        wide = x.reshape(len(x), heads, weight.values.size).astype(np.float64)
        scale: Doubles = np.sqrt((wide * wide).mean(axis=2, keepdims=True) + eps)
        return (wide / scale * weight.values).astype(np.float32).reshape(x.shape)

    def rope(self, q: Floats, k: Floats, head_dim: int, table: RopeTable) -> tuple[Floats, Floats]:
        """Rotate each head of q and k."""
        last = int(self._step.positions.max())
        if last >= len(table.cos):
            raise ValueError(f"position {last} is beyond the {len(table.cos)} of the rope table")
        return self._rotate(q, head_dim, table), self._rotate(k, head_dim, table)

    def _rotate(self, x: Floats, head_dim: int, table: RopeTable) -> Floats:
        heads = x.reshape(len(x), -1, head_dim).astype(np.float64)
        cos, sin = (t[self._step.positions][:, None, :].astype(np.float64) for t in (table.cos, table.sin))
        half = table.dims // 2
        if table.adjacent:
            first, second = slice(0, table.dims, 2), slice(1, table.dims, 2)
        else:
            first, second = slice(0, half), slice(half, table.dims)
        a, b = heads[..., first], heads[..., second]
        rotated = heads.copy()
        rotated[..., first] = a * cos - b * sin
        rotated[..., second] = a * sin + b * cos
        return rotated.reshape(x.shape).astype(np.float32)

    def attend(self, q: Floats, k: Floats, v: Floats, kv: KVLayer) -> Floats:
        """Write k and v, then attend to what is stored: row by row, the keys in its window up to its own position."""
        step, store = self._step, self._kv
        group = store.groups[kv.group]
        if (kv.heads, kv.head_dim) != (group.heads, group.head_dim) or not 0 <= kv.layer < group.layers:
            raise ValueError(f"{kv} does not fit {group}")
        if k.shape != v.shape or k.shape[1] != kv.heads * kv.head_dim or q.shape[1] % k.shape[1]:
            raise ValueError(f"{kv} cannot take q {q.shape}, k {k.shape}, v {v.shape}")
        if kv.sinks is not None and kv.sinks.values.shape != (q.shape[1] // kv.head_dim,):
            raise ValueError(f"{kv.sinks.name} is {kv.sinks.values.shape}, q is {q.shape} in heads of {kv.head_dim}")
        table = step.tables[kv.group]
        places = step.positions // store.page_size
        if places.max() >= table.shape[1]:
            raise ValueError(f"position {step.positions.max()} is beyond the page table's {table.shape[1]} pages")
        stored, pages = writes(step, table, store.page_size)
        store.write(kv, pages, step.positions[stored] % store.page_size, k[stored], v[stored])
        result = np.empty(q.shape, np.float32)
        for sequence in np.unique(step.sequences):
            rows = np.flatnonzero(step.sequences == sequence)
            begin = _first_seen(int(step.positions[rows[0]]), kv.window)
            keys, values = store.read(kv, table[sequence], begin, int(step.positions[rows[-1]]) + 1)
            for row in rows:
                position = int(step.positions[row])
                seen = slice(_first_seen(position, kv.window) - begin, position + 1 - begin)
                result[row] = _attention(q[row], keys[seen], values[seen], kv)
        return result

    def act(self, gate: Floats, up: Floats, kind: Activation) -> Floats:
        """f(gate) * up."""
        if kind not in ACTS:
            raise ValueError(f"act knows {', '.join(ACTS)}, got {kind!r}")
        _check_same(gate, up)
        g = gate.astype(np.float64)
        if kind == "swiglu_clamped":
            g, up = np.minimum(g, 7.0), np.clip(up, -7, 7) + np.float32(1)
        z = {"silu": g, "swiglu_clamped": 1.702 * g}.get(kind)
        if z is None:
            z = 2 * np.sqrt(2 / np.pi) * (g + 0.044715 * g**3)
        with np.errstate(over="ignore"):  # exp(-z) may be infinite: the quotient is then 0, as it should be
            turned: Doubles = g / (1 + np.exp(-z))
        return (turned * up).astype(np.float32)

    def moe(
        self, x: Floats, scores: Floats, experts: Experts, chosen: int, kind: Activation, routing: Routing
    ) -> Floats:
        """Row by row, expert by expert."""
        if scores.shape != (len(x), len(experts.gate)) or not 1 <= chosen <= len(experts.gate):
            raise ValueError(f"{chosen} of {len(experts.gate)} experts cannot be chosen by scores {scores.shape}")
        result = np.zeros((len(x), experts.down[0].values.shape[0]), np.float64)
        for r in range(len(x)):
            wide = scores[r].astype(np.float64)
            best = np.argsort(-wide, kind="stable")[:chosen]
            weights = np.exp(wide - wide.max())
            weights /= (weights if routing == "all" else weights[best]).sum()
            for e in best:
                gate, up = (
                    self._product(x[r : r + 1], w[e]) + (0 if experts.biases is None else experts.biases[i].values[e])
                    for i, w in enumerate((experts.gate, experts.up))
                )
                y = self._product(self.act(gate, up, kind), experts.down[e])
                bias = 0 if experts.biases is None else experts.biases[2].values[e]
                result[r] += weights[e] * (y[0] + bias)
        return result.astype(np.float32)

    def add(self, x: Floats, y: Floats) -> Floats:
        """x + y."""
        _check_same(x, y)
        return (x.astype(np.float64) + y).astype(np.float32)

    def scale(self, x: Floats, factor: float) -> Floats:
        """x * factor."""
        return x * np.float32(factor)

    def soft_cap(self, x: Floats, cap: float) -> Floats:
        """cap * tanh(x / cap)."""
        capped: Doubles = cap * np.tanh(x.astype(np.float64) / cap)
        return capped.astype(np.float32)

    def pick(self, x: Floats) -> Floats:
        """Rows `Step.sampled` of x."""
        if len(x) != len(self._step.ids):
            raise ValueError(f"pick takes one row for each of the step's {len(self._step.ids)}, got {len(x)}")
        return x[self._step.sampled]

    def input(self, name: str, width: int, rows: Rows = "R") -> Floats:
        """`Step.inputs[name]`."""
        shape = (len(self._step.ids if rows == "R" else self._step.sampled), width)
        if name not in self._step.inputs:
            raise ValueError(f"the step has inputs {sorted(self._step.inputs)}, the program reads {name!r}")
        value = self._step.inputs[name]
        if value.shape != shape or value.dtype != np.float32:
            raise ValueError(f"input {name!r} must be {shape} of float32, got {value.shape} of {value.dtype}")
        return value

    def output(self, name: str, x: Floats) -> None:
        """Hand x out of the step."""
        if name in self.outputs:
            raise ValueError(f"output {name!r} is there already")
        self.outputs[name] = x.copy()


def _check_same(x: Floats, y: Floats) -> None:
    if x.shape != y.shape:
        raise ValueError(f"shapes must be equal, got {x.shape} and {y.shape}")


def _first_seen(position: int, window: int | None) -> int:
    return 0 if window is None else max(0, position - window + 1)


def _attention(q: Floats, keys: Doubles, values: Doubles, kv: KVLayer) -> Doubles:
    """One row's attention: q [H * dim], keys and values [n, G, dim] -> [H * dim]; head h reads key head h * G / H."""
    groups, dim = keys.shape[1:]
    heads = q.reshape(groups, -1, dim).astype(np.float64)
    result = np.empty_like(heads)
    sinks = np.full(heads.shape[:2], -np.inf) if kv.sinks is None else kv.sinks.values.reshape(groups, -1)
    for g in range(groups):
        scores = heads[g] @ keys[:, g].T * kv.scale
        if kv.soft_cap is not None:
            scores = kv.soft_cap * np.tanh(scores / kv.soft_cap)
        sink = sinks[g][:, None].astype(np.float64)
        top = np.maximum(scores.max(axis=1, keepdims=True), sink)
        weights = np.exp(scores - top)
        result[g] = weights @ values[:, g] / (weights.sum(axis=1, keepdims=True) + np.exp(sink - top))
    return result.reshape(-1)


@dataclass(frozen=True, slots=True)
class ReferencePending:
    """A step that has been computed already."""

    output: StepOutput

    def wait(self) -> StepOutput:
        """At once."""
        return self.output


class ReferenceProgram:
    """Keeps the function and calls it in every run."""

    def __init__(self, build: Callable[[Ops], None], activations: str) -> None:
        self._build = build
        self._activations = activations

    def submit(
        self, kv: KVStore, step: Step, slots: Slots | None = None, draws: Sequence[Draw] = (), outputs: bool = False
    ) -> ReferencePending:
        """Compute one step and sample it.

        Raises:
            ValueError: the step is not well formed.
        """
        began = perf_counter()
        if not isinstance(kv, ReferenceKVStore) or not isinstance(slots, ReferenceSlots | None):
            raise ValueError(f"the reference backend needs a KV store and slots of its own, got {kv} and {slots}")
        slots = ReferenceSlots() if slots is None else slots
        check_step(step, len(kv.groups))
        for slot, prompt in step.starts:
            slots.start(slot, prompt)
        for group, source, target, count in step.copies:
            kv.copy(group, source, target, count)
        known = replace(step, ids=known_ids(step, slots))
        ops = ReferenceOps(kv, known, self._activations)
        self._build(ops)
        drawn = draw_rows(ops.outputs, known, slots, draws) if draws else ((), (), (), ())
        seconds = perf_counter() - began
        return ReferencePending(StepOutput(ops.outputs if outputs else {}, *drawn, seconds))

    def run(self, kv: KVStore, step: Step) -> dict[str, Floats]:
        """Run one step; the arrays handed out by `Ops.output`, copied."""
        return self.submit(kv, step, outputs=True).wait().outputs


class ReferenceBackend:
    """Opens the reference. `threads` is there because every backend takes it: NumPy's own are used."""

    name = "reference"
    layout = "reference-1"

    def __init__(self, activations: str = "int16", threads: int | None = None) -> None:
        if activations not in ACTIVATIONS:
            raise InvalidConfig(f"activations must be one of {ACTIVATIONS}, got {activations!r}")
        if threads is not None and threads < 1:
            raise InvalidConfig(f"threads must be positive, got {threads}")
        self.activations = activations

    def weights(self, tensors: Sequence[StoredTensor]) -> list[ReferenceWeight]:
        """Dequantize several."""
        return [self.weight(tensor) for tensor in tensors]

    def weight(self, tensor: StoredTensor) -> ReferenceWeight:
        """Dequantize a stored tensor."""
        values = np.array(tensor.floats(), np.float32)  # a copy: the stored bytes may go away
        return ReferenceWeight(tensor.name, values, tensor.format.name not in UNQUANTISED, tensor.order)

    def kv_store(
        self, groups: Sequence[KVGroup], pages: Sequence[int], page_size: int, kv_format: str
    ) -> ReferenceKVStore:
        """Commit memory for `pages[g]` pages of each group.

        Raises:
            MemoryLimit: it cannot be had.
        """
        if kv_format not in KV_FORMATS:
            raise InvalidConfig(f"kv_format must be one of {KV_FORMATS}, got {kv_format!r}")
        try:
            return ReferenceKVStore(groups, pages, page_size, kv_format)
        except MemoryError as error:
            raise MemoryLimit(f"no memory for {tuple(pages)} KV pages: {error}; ask for fewer") from error

    def transfer(self, kv: KVStore, saves: Sequence[Unit], loads: Sequence[tuple[Unit, Bytes]]) -> ReferenceTransfer:
        """Copy pages out, then others in."""
        if not isinstance(kv, ReferenceKVStore):
            raise ValueError(f"the reference backend needs a KV store of its own, got {kv}")
        return kv.transfer(saves, loads)

    def slots(self) -> ReferenceSlots:
        """Room for sequences' tokens."""
        return ReferenceSlots()

    def program(self, build: Callable[[Ops], None]) -> ReferenceProgram:
        """Turn a function that calls verbs into a program."""
        return ReferenceProgram(build, self.activations)
