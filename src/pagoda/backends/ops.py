"""`Ops`: the verbs a model is written against, and the door that every backend opens.

A model is three segments, `enter`, `layer(i)` and `leave`, that call these verbs. The reference backend computes each
verb as it is called; the native one records it and runs the recording later, with no Python in between. So a model
sees only opaque values: it may hand them to other verbs, and nothing else.

Rows come in classes: R, the rows (tokens) of the step; S, the rows whose logits are wanted. What changes from step to
step is in `Step`; what a verb needs besides is in its static arguments.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int32]
Bytes = npt.NDArray[np.uint8]
Value = Any
"""A backend's own: a row class and a width, [rows, width] of f32."""
Weight = Any
"""A backend's own: a matrix [n, k] or a vector [k], packed as it likes."""
Rows = Literal["R", "S"]
Activation = Literal["silu", "gelu_tanh", "swiglu_clamped"]
Routing = Literal["chosen", "all"]
"""Over which experts' scores the softmax goes that weighs the chosen ones."""


class StoredFormat(Protocol):
    """How numbers lie in a model file: one implementation per file of `quant`."""

    name: str
    """As in `q4_1`; the native backend chooses its packing and kernels by it."""
    block: int
    """Consecutive numbers of a row that are stored together; divides the row's length."""
    block_bytes: int

    def dequantize(self, raw: Bytes) -> Floats:
        """The numbers, exactly: [blocks, block_bytes] -> [blocks, block]."""
        ...


class Extent(Protocol):
    """Bytes of an open file that nobody has read yet."""

    @property
    def descriptor(self) -> int:
        """The open file's."""
        ...

    @property
    def offset(self) -> int:
        """Of the first byte in the file."""
        ...

    @property
    def size(self) -> int:
        """Bytes."""
        ...

    def part(self, start: int, size: int) -> Extent:
        """`size` of them from byte `start` on."""
        ...

    def read(self) -> Bytes:
        """All of them.

        Raises:
            ModelFileError: the file cannot be read or has shrunk.
            MemoryLimit: they do not fit into memory.
        """
        ...


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor as its file holds it, [n, k] or [k], row-major, each row a whole number of blocks."""

    name: str
    shape: tuple[int, ...]
    """Outermost first: (n, k) is n rows (output features) of k (input features)."""
    format: StoredFormat
    stored: Bytes | Extent
    """The file's bytes, read-only, or where they lie; let go once packed."""
    order: Ints | None = None
    """[k] the input that each column is of, if they are not in the inputs' order (GPTQ's act-order)."""

    @property
    def raw(self) -> Bytes:
        """The bytes; read now, if only their place is known."""
        return self.stored if isinstance(self.stored, np.ndarray) else self.stored.read()

    def floats(self) -> Floats:
        """Dequantized, in `shape`, columns as they are stored."""
        blocks = self.raw.reshape(-1, self.format.block_bytes)
        return self.format.dequantize(blocks).reshape(self.shape)


@dataclass(frozen=True, slots=True, eq=False)
class RopeTable:
    """Rotary embedding: the angles of each position, and which elements of a head form a pair.

    Su et al. 2021, "RoFormer". `cos` and `sin` are [positions, dims / 2] of f32. Pair i is elements (2i, 2i + 1) if
    `adjacent`, else (i, i + dims / 2). Elements of a head from `dims` on pass through.
    """

    cos: Floats
    sin: Floats
    adjacent: bool

    @property
    def dims(self) -> int:
        """Rotated elements of a head."""
        return 2 * int(self.cos.shape[1])


@dataclass(frozen=True, slots=True)
class KVGroup:
    """Layers that share a KV layout and lifetime."""

    layers: int
    """Of a model's first group, maybe none: then all of its layers have windows."""
    heads: int
    """Key-value heads."""
    head_dim: int
    window: int | None = None
    """Of its layers (`KVLayer.window`): pages before it may be given back; None: they are kept."""


@dataclass(frozen=True, slots=True)
class KVLayer:
    """Where one layer's keys and values lie, and how its attention scores are formed."""

    group: int
    layer: int
    """Index within the group."""
    heads: int
    """Key-value heads; query heads are a multiple of it."""
    head_dim: int
    scale: float
    """Scores are (q . k) * scale."""
    window: int | None = None
    """A row at position p sees keys p - window + 1 to p (Beltagy et al. 2020, "Longformer", 3.1); None: all up to p."""
    soft_cap: float | None = None
    """Scores become soft_cap * tanh(score / soft_cap) ("Gemma 2", 2024, section 2); None: they stay."""
    sinks: Weight | None = None
    """[query heads]: a score for each head that takes weight and has no value (Xiao et al. 2023, "Attention sinks",
    as gpt-oss has it); None: nothing takes weight but keys."""

    def __post_init__(self) -> None:
        if self.window is not None and self.window < 1:
            raise ValueError(f"a window is at least 1 key, got {self.window}")
        if self.soft_cap is not None and not 0 < self.soft_cap < math.inf:
            raise ValueError(f"a soft cap is positive and finite, got {self.soft_cap}")


@dataclass(frozen=True, slots=True, eq=False)
class Experts:
    """The matrices of a mixture of experts (Shazeer et al. 2017), in the order of the router's scores."""

    gate: Sequence[Weight]
    up: Sequence[Weight]
    """[F, D] each, as `gate`."""
    down: Sequence[Weight]
    """[D, F] each."""
    biases: tuple[Weight, Weight, Weight] | None = None
    """Of gate [E, F], up [E, F] and down [E, D]: a row for each expert."""


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """All that changes from step to step. R rows, B sequences, S sampled rows; integers are int32.

    Rows of one sequence are consecutive and in position order. A tree of drafts is several sequences here, one for each
    of its paths: every row is in one of them, the earliest that it is on, and `parents` says where the others leave it.
    """

    ids: Ints
    """[R] token ids."""
    positions: Ints
    """[R] absolute positions."""
    sequences: Ints
    """[R] row -> sequence, 0 to B - 1, not descending."""
    tables: tuple[Ints, ...]
    """Per KV group [B, widest]: page numbers in order. Entries past a sequence's end are never read, nor those before
    its first row's window, if all layers of the group have one."""
    sampled: Ints
    """[S] rows whose logits are wanted, ascending."""
    inputs: dict[str, Floats] = field(default_factory=dict)
    """Values for `Ops.input`, by name."""
    slots: Ints = field(default_factory=lambda: np.empty(0, np.int32))
    """[B] each sequence's slot in `Slots`, if `ids` has -1: the token sampled last for the row's sequence."""
    guesses: Ints = field(default_factory=lambda: np.empty(0, np.int32))
    """[B] each sequence's slot of guesses, if `ids` has less than -1: -2 - i is token i of that slot's output."""
    parents: Ints = field(default_factory=lambda: np.empty(0, np.int32))
    """[B] of each sequence that is a path of a tree, the earlier row, of another, that its first row follows: that row
    and those before it in the step are in its line too, and are stored in the pages of its table as well as in their
    own, where those differ. -1: it leaves none. Empty: none does.
    """
    copies: tuple[tuple[int, int, int, int], ...] = ()
    """(group, source page, target page, slots): copied before anything is computed."""
    starts: tuple[tuple[int, Ints], ...] = ()
    """(slot, prompt): sequences that take a slot, with an empty output, before anything is computed."""


class Ops(Protocol):
    """The verbs. All values are f32; a backend states how each is rounded in docs/arithmetic.md's terms."""

    def embed(self, weight: Weight) -> Value:
        """Rows `Step.ids` of weight [V, D]: R x D."""
        ...

    def linear(
        self,
        x: Value,
        weights: Weight | Sequence[Weight],
        site: str = "",
        bias: Weight | Sequence[Weight] | None = None,
    ) -> Any:  # a Value for one weight, a tuple of Values for a sequence of them
        """x @ W.T + b for W [N, K] and b [N], if there is one; several weights read the same x in one pass.

        Weights in a quantised format read x as int16 or int8 in blocks of 32, unless the backend was opened with f32
        activations. `site` names the place for adapters: `layers.3.qkv`.
        """
        ...

    def norm(self, x: Value, weight: Weight, eps: float, heads: int = 1) -> Value:
        """x / sqrt(mean(x^2) + eps) * weight (RMSNorm; Zhang & Sennrich 2019), for each of `heads` equal parts of a row
        with the same weight [width / heads]."""
        ...

    def rope(self, q: Value, k: Value, head_dim: int, table: RopeTable) -> tuple[Value, Value]:
        """Rotate each head of q [R, H * head_dim] and k [R, G * head_dim] by its row's position."""
        ...

    def attend(self, q: Value, k: Value, v: Value, kv: KVLayer) -> Value:
        """Causal attention with grouped query heads: R x (H * head_dim); `kv` says how scores are formed.

        Writes k and v to the cache in its stored form, then reads only what is stored, its own rows included.
        """
        ...

    def act(self, gate: Value, up: Value, kind: Activation) -> Value:
        """f(gate) * up.

        `silu`: f(x) = x / (1 + exp(-x)). `gelu_tanh`: f(x) = x / (1 + exp(-2z)), z = sqrt(2 / pi) (x + 0.044715 x^3),
        which is x (1 + tanh z) / 2 (Hendrycks & Gimpel 2016). `swiglu_clamped` (gpt-oss): gate held to
        7 at most, up to within 7 of 0, then gate / (1 + exp(-1.702 gate)) * (up + 1).
        """
        ...

    def moe(self, x: Value, scores: Value, experts: Experts, chosen: int, kind: Activation, routing: Routing) -> Value:
        """The sum over the `chosen` experts of largest score [R, E] (ties: the lower number first) of weight times
        down(act(gate(x), up(x))), best first."""
        ...

    def add(self, x: Value, y: Value) -> Value:
        """x + y."""
        ...

    def scale(self, x: Value, factor: float) -> Value:
        """x * factor, the factor rounded to f32."""
        ...

    def soft_cap(self, x: Value, cap: float) -> Value:
        """cap * tanh(x / cap): within -cap and cap."""
        ...

    def pick(self, x: Value) -> Value:
        """Rows `Step.sampled` of x: R x D -> S x D."""
        ...

    def input(self, name: str, width: int, rows: Rows = "R") -> Value:
        """`Step.inputs[name]`."""
        ...

    def output(self, name: str, x: Value) -> None:
        """Hand x out of the step under a name."""
        ...


class Model(Protocol):
    """One family, written against `Ops`. The runner composes its segments."""

    layers: int
    groups: tuple[KVGroup, ...]
    vocabulary: int

    def enter(self, ops: Ops) -> Value:
        """Token ids to the first hidden state, R x D."""
        ...

    def layer(self, ops: Ops, i: int, x: Value) -> Value:
        """Layer i, R x D -> R x D."""
        ...

    def leave(self, ops: Ops, x: Value) -> Value:
        """Hidden state to logits, R x D -> S x V."""
        ...


class KVStore(Protocol):
    """The memory behind the pages of all KV groups."""

    def copy(self, group: int, source: int, target: int, slots: int) -> None:
        """Copy the first `slots` slots of a page, in every layer."""
        ...

    @property
    def unit_bytes(self) -> int:
        """Bytes of one page of every group, all layers, as `Backend.transfer` moves them."""
        ...


Slots = Any
"""A backend's own: each running sequence's tokens, kept beside the sampler. Penalties and `ids` of -1 look at them."""


@dataclass(frozen=True, slots=True)
class Draw:
    """How one row of logits is sampled: docs/arithmetic.md, "Sampling". Ranges are those of `SamplingParams`."""

    slot: int
    """In `Slots`: the token chosen is appended there."""
    seed: int
    choice: int
    position: int
    """Absolute position of the token to be chosen."""
    temperature: float
    top_p: float
    min_p: float
    repetition: float
    frequency: float
    presence: float
    top_k: int
    logprobs: int
    """-1: none; else how many of the likeliest tokens to report besides the chosen one."""
    drafts: int = 0
    """So many sampled rows after this one are of drafts, the next tokens of the sequence if they turn out right.

    Each row is sampled as if all drafts on the way to it were the sequence's own tokens. A draft is right if it is the
    token sampled at the row it follows; where none is, the draw ends: it gives one token more than it has right drafts.
    Without a tree, each follows the one before it.
    """


@dataclass(frozen=True, slots=True, eq=False)
class StepOutput:
    """What came out of one step."""

    outputs: dict[str, Floats]
    """By name, copied, if they were asked for."""
    counts: tuple[int, ...]
    """Of each draw, how many tokens it gave: T together."""
    tokens: tuple[int, ...]
    """[T] tokens drawn; empty if the step had no draws."""
    logprobs: tuple[float, ...]
    """[T] log-probability of each token drawn, where asked for."""
    top: tuple[tuple[tuple[int, float], ...], ...]
    """[T] the likeliest tokens with their log-probabilities, likeliest first, ties by id."""
    seconds: float
    """How long the step took to compute."""


class Pending(Protocol):
    """A step on its way."""

    def wait(self) -> StepOutput:
        """Until it is done, without the GIL.

        Raises:
            ValueError: the step was not well formed.
        """
        ...


Unit = tuple[int, ...]
"""One page of each KV group."""


class PendingTransfer(Protocol):
    """Pages on their way."""

    def wait(self) -> tuple[list[Bytes], float]:
        """Until it is done, without the GIL: the bytes of each page saved, and how long it took in seconds. Once."""
        ...


class Program(Protocol):
    """A recorded or callable forward pass."""

    def submit(
        self, kv: KVStore, step: Step, slots: Slots | None = None, draws: Sequence[Draw] = (), outputs: bool = False
    ) -> Pending:
        """Queue one step behind those submitted before; returns at once. With draws, for all sampled rows together, the
        value handed out as `logits` is sampled; with `outputs`, all values handed out are copied out.
        """
        ...

    def run(self, kv: KVStore, step: Step) -> dict[str, Floats]:
        """Run one step and wait; the arrays handed out by `Ops.output`, copied."""
        ...


class Backend(Protocol):
    """A device's arithmetic: it packs weights, holds KV pages and runs programs."""

    name: str
    activations: str
    layout: str
    """What the bytes of a page mean, besides the KV format: pages are moved within one layout only."""

    def weights(self, tensors: Sequence[StoredTensor]) -> list[Weight]:
        """Pack several stored tensors, in their order; none of their bytes are needed afterwards."""
        ...

    def weight(self, tensor: StoredTensor) -> Weight:
        """Pack a stored tensor; the tensor's bytes are not needed afterwards."""
        ...

    def kv_store(self, groups: Sequence[KVGroup], pages: Sequence[int], page_size: int, kv_format: str) -> KVStore:
        """Commit memory for `pages[g]` pages of each group.

        Raises:
            MemoryLimit: it cannot be had.
        """
        ...

    def transfer(self, kv: KVStore, saves: Sequence[Unit], loads: Sequence[tuple[Unit, Bytes]]) -> PendingTransfer:
        """Copy pages out, then others in, in order with the steps submitted before and after; returns at once. No page
        is loaded twice.

        Raises:
            ValueError: a page that is not there, or bytes of another size.
        """
        ...

    def program(self, build: Callable[[Ops], None]) -> Program:
        """Turn a function that calls verbs into a program."""
        ...

    def slots(self) -> Slots:
        """Room for sequences' tokens; it grows as slots are taken."""
        ...
