"""Records what a model does with `Ops` as a flat list of instructions over numbered values.

Knows the native instruction set (native/src/program.h). Does not know what any instruction computes; `passes` rewrites
the list, `cpu` hands it to the native executor.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Any, get_args

from pagoda.backends.ops import Activation, Experts, Floats, Ints, KVLayer, RopeTable, Routing, Rows

NONE = -1
"""An absent operand."""
ACTS = get_args(Activation)
"""In the order of `Act` in native/src/kernels.h."""
ROUTINGS = get_args(Routing)
INTEGERS = {"int8": 1, "int16": 2, "f32": 0}
"""Activations -> bytes of a number, if quantised."""


class Op(IntEnum):
    """As `Op` in native/src/program.h, which says the operands of each."""

    EMBED = 0
    INPUT = 1
    QUANTIZE = 2
    LINEAR = 3
    NORM = 4
    ROPE = 5
    STORE = 6
    ROPE_STORE = 7
    ATTEND = 8
    MERGE = 9
    ACT = 10
    ADD = 11
    PICK = 12
    OUTPUT = 13
    SCALE = 14
    SOFT_CAP = 15
    ROUTE = 16
    GROUP = 17
    GATHER = 18
    EXPERTS = 19
    COMBINE = 20
    PERMUTE = 21


@dataclass(frozen=True, slots=True)
class Shape:
    """What memory a value needs."""

    rows: Rows
    width: int
    integer: int = 0
    """Bytes of a number, of integers in blocks of 32; 0 is f32."""
    chosen: int = 0
    """Of a mixture's routed rows: how many each row of the step has, one for each of its experts; 0: no such rows."""
    experts: int = 0
    """And from how many they are chosen."""


@dataclass(frozen=True, slots=True)
class Instruction:
    """One line of a recording."""

    op: Op
    reads: tuple[int, ...] = ()
    writes: tuple[int, ...] = ()
    constants: tuple[int, ...] = ()
    """Numbers of weights, vectors or tables."""
    whole: tuple[int, ...] = ()
    real: tuple[float, ...] = ()
    text: str = ""

    def uses(self) -> tuple[int, ...]:
        """Values read, absent ones left out."""
        return tuple(v for v in self.reads if v != NONE)

    def makes(self) -> tuple[int, ...]:
        """Values written, absent ones left out."""
        return tuple(v for v in self.writes if v != NONE)


@dataclass(frozen=True, slots=True, eq=False)
class NativeWeight:
    """A packed matrix, or a vector as it is."""

    name: str
    shape: tuple[int, ...]
    quantized: bool
    """Whether its stored format is a quantised one, of integers."""
    packed: Any = None
    """`_native.Weight`, of a matrix."""
    vector: Floats | None = None
    order: Ints | None = None
    """[k] the input that each column is of, if not in the inputs' order."""


@dataclass(slots=True)
class Recording:
    """Instructions, and what they refer to by number."""

    instructions: list[Instruction] = field(default_factory=list)
    shapes: list[Shape] = field(default_factory=list)
    matrices: list[NativeWeight] = field(default_factory=list)
    vectors: list[NativeWeight] = field(default_factory=list)
    tables: list[RopeTable] = field(default_factory=list)

    def value(self, shape: Shape) -> int:
        """A new value's number."""
        self.shapes.append(shape)
        return len(self.shapes) - 1


class Recorder:
    """`Ops` that writes down instead of computing. Values are numbers."""

    def __init__(self, activations: str) -> None:
        self.recording = Recording()
        self._integer = INTEGERS[activations]
        self._quantized: dict[int, int] = {}
        self._numbers: dict[int, int] = {}
        self._permuted: dict[tuple[int, bytes], int] = {}

    def _emit(self, op: Op, *shapes: Shape, **fields: Any) -> tuple[int, ...]:
        made = tuple(self.recording.value(shape) for shape in shapes)
        self.recording.instructions.append(Instruction(op, writes=made, **fields))
        return made

    def _number(self, known: list[Any], thing: Any) -> int:
        """The place of a weight or table in its list, which it is added to if it is new."""
        at = self._numbers.setdefault(id(thing), len(known))
        if at == len(known):
            known.append(thing)
        return at

    def _shape(self, value: int) -> Shape:
        return self.recording.shapes[value]

    def embed(self, weight: NativeWeight) -> int:
        """Rows `Step.ids` of weight."""
        at = self._number(self.recording.matrices, weight)
        return self._emit(Op.EMBED, Shape("R", weight.shape[1]), constants=(at,))[0]

    def linear(
        self,
        x: int,
        weights: NativeWeight | Sequence[NativeWeight],
        site: str = "",  # noqa: ARG002
        bias: NativeWeight | Sequence[NativeWeight] | None = None,
    ) -> Any:
        """x @ W.T + b; weights that read the same form of x share a pass. No adapters yet: `site` changes nothing."""
        several = [weights] if isinstance(weights, NativeWeight) else list(weights)
        biases = [bias] if isinstance(bias, NativeWeight) else list(bias or ())
        for w in several:
            if len(w.shape) != 2 or w.shape[1] != self._shape(x).width:
                raise ValueError(f"{w.name} is {w.shape}, its input {self._shape(x).width} wide")
        for w, b in zip(several, biases, strict=True) if biases else ():
            if b.shape != w.shape[:1]:
                raise ValueError(f"{b.name} is {b.shape}, what it is added to {w.shape[0]} wide")
        added = [self._number(self.recording.vectors, b) for b in biases]
        made: dict[int, int] = {}
        forms = [(w.quantized and self._integer > 0, b"" if w.order is None else w.order.tobytes()) for w in several]
        rows = self._shape(x).rows
        for form in sorted(set(forms), key=lambda form: (not form[0], form[1])):
            chosen = [i for i, each in enumerate(forms) if each == form]
            read = self._in_order(x, several[chosen[0]].order)
            read = self._as_integers(read) if form[0] else read
            written = self._emit(
                Op.LINEAR,
                *(Shape(rows, several[i].shape[0]) for i in chosen),
                reads=(read,),
                constants=tuple(self._number(self.recording.matrices, several[i]) for i in chosen),
                whole=tuple(added[i] for i in chosen) if added else (),
            )
            made.update(zip(chosen, written, strict=True))
        if isinstance(weights, NativeWeight):
            return made[0]
        return tuple(made[i] for i in range(len(several)))

    def _in_order(self, x: int, order: Ints | None) -> int:
        """x's columns as a matrix wants them; those that want the same share them."""
        if order is None:
            return x
        key = (x, order.tobytes())
        if key not in self._permuted:
            whole = tuple(order.tolist())
            self._permuted[key] = self._emit(Op.PERMUTE, self._shape(x), reads=(x,), whole=whole)[0]
        return self._permuted[key]

    def _as_integers(self, x: int) -> int:
        if x not in self._quantized:
            shape = replace(self._shape(x), integer=self._integer)
            self._quantized[x] = self._emit(Op.QUANTIZE, shape, reads=(x,))[0]
        return self._quantized[x]

    def norm(self, x: int, weight: NativeWeight, eps: float, heads: int = 1) -> int:
        """RMSNorm of each head."""
        if len(weight.shape) != 1 or heads * weight.shape[0] != self._shape(x).width:
            raise ValueError(f"{weight.name} is {weight.shape}, its input {self._shape(x).width} wide in {heads} heads")
        y = self.recording.value(self._shape(x))
        at = self._number(self.recording.vectors, weight)
        self.recording.instructions.append(Instruction(Op.NORM, (x, NONE), (NONE, y, NONE), (at,), (heads,), (eps,)))
        return y

    def rope(self, q: int, k: int, head_dim: int, table: RopeTable) -> tuple[int, int]:
        """Rotary embedding of q and k."""
        at = self._number(self.recording.tables, table)
        turned = self._emit(Op.ROPE, self._shape(q), self._shape(k), reads=(q, k), constants=(at,), whole=(head_dim,))
        return turned[0], turned[1]

    def attend(self, q: int, k: int, v: int, kv: KVLayer) -> int:
        """Store, then attend, then merge what attention split over several spans of keys."""
        width = self._shape(q).width
        if self._shape(k).width != kv.heads * kv.head_dim or self._shape(v).width != kv.heads * kv.head_dim:
            raise ValueError(f"{kv} cannot take keys {self._shape(k).width} and values {self._shape(v).width} wide")
        if width % (kv.heads * kv.head_dim):
            raise ValueError(f"{kv} cannot take queries {width} wide")
        if kv.sinks is not None and kv.sinks.shape != (width // kv.head_dim,):
            raise ValueError(f"{kv.sinks.name} is {kv.sinks.shape}, there are {width // kv.head_dim} query heads")
        place = (kv.group, kv.layer)
        self._emit(Op.STORE, reads=(k, v), whole=place)
        form: dict[str, Any] = {
            "constants": () if kv.sinks is None else (self._number(self.recording.vectors, kv.sinks),),
            "whole": (*place, kv.window or 0),
            "real": (kv.scale, kv.soft_cap or 0.0),
        }
        y = self._emit(Op.ATTEND, Shape("R", width), reads=(q,), **form)[0]
        # Reads what it writes: the rows that were not split stay.
        self.recording.instructions.append(Instruction(Op.MERGE, (y,), (y,), **form))
        return y

    def act(self, gate: int, up: int, kind: Activation) -> int:
        """f(gate) * up."""
        if kind not in ACTS:
            raise ValueError(f"act knows {', '.join(ACTS)}, got {kind!r}")
        self._same(gate, up)
        y = self.recording.value(self._shape(gate))
        self.recording.instructions.append(Instruction(Op.ACT, (gate, up), (y, NONE), whole=(ACTS.index(kind),)))
        return y

    def moe(self, x: int, scores: int, experts: Experts, chosen: int, kind: Activation, routing: Routing) -> int:
        """Choose, bring together the rows of each expert, then gate and up, act, down; and add each row's experts."""
        count, (hidden, width) = len(experts.gate), experts.gate[0].shape
        if (self._shape(scores).width, self._shape(x).width) != (count, width) or not 1 <= chosen <= count:
            raise ValueError(
                f"{chosen} of {count} experts of {width} cannot be chosen by {self._shape(scores).width} scores "
                f"for an input {self._shape(x).width} wide"
            )
        whole = (chosen, ROUTINGS.index(routing))
        routes = self._emit(Op.ROUTE, Shape("R", 2 * chosen), reads=(scores,), whole=whole)[0]
        self._emit(Op.GROUP, reads=(routes,), whole=(count, chosen))
        gate_bias, up_bias, down_bias = experts.biases or (None, None, None)
        if experts.gate[0].quantized == experts.up[0].quantized:
            gathered = self._gather(x, experts.gate[0], chosen, count)
            gate, up = self._experts(gathered, (experts.gate, experts.up), (gate_bias, up_bias), hidden)
        else:
            gate, up = (
                self._experts(self._gather(x, weights[0], chosen, count), (weights,), (bias,), hidden)[0]
                for weights, bias in ((experts.gate, gate_bias), (experts.up, up_bias))
            )
        y = self._experts(self.act(gate, up, kind), (experts.down,), (down_bias,), width)[0]
        return self._emit(Op.COMBINE, Shape("R", width), reads=(y, routes))[0]

    def _gather(self, x: int, weight: NativeWeight, chosen: int, experts: int) -> int:
        """x in routed rows, in the form that this weight reads."""
        read = self._as_integers(x) if weight.quantized and self._integer else x
        return self._emit(Op.GATHER, replace(self._shape(read), chosen=chosen, experts=experts), reads=(read,))[0]

    def _experts(
        self,
        x: int,
        matrices: Sequence[Sequence[NativeWeight]],
        biases: Sequence[NativeWeight | None],
        rows: int,
    ) -> tuple[int, ...]:
        """Each routed row times its expert's matrix, for each kind of matrix."""
        experts = [w for kind in matrices for w in kind]
        for w in experts:
            if w.shape != experts[0].shape or w.quantized != experts[0].quantized:
                raise ValueError(f"experts must be alike: {w.name} is {w.shape}, {experts[0].name} {experts[0].shape}")
            if w.order is not None:
                raise ValueError(f"experts must have their columns in order: {w.name} has not")
        read = self._as_integers(x) if experts[0].quantized and self._integer and not self._shape(x).integer else x
        made = replace(self._shape(x), width=rows, integer=0)
        return self._emit(
            Op.EXPERTS,
            *(made for _ in matrices),
            reads=(read,),
            constants=tuple(self._number(self.recording.matrices, w) for w in (*experts, *(b for b in biases if b))),
            whole=(len(matrices[0]),),
        )

    def add(self, x: int, y: int) -> int:
        """x + y."""
        self._same(x, y)
        return self._emit(Op.ADD, self._shape(x), reads=(x, y))[0]

    def scale(self, x: int, factor: float) -> int:
        """x * factor."""
        return self._emit(Op.SCALE, self._shape(x), reads=(x,), real=(factor,))[0]

    def soft_cap(self, x: int, cap: float) -> int:
        """cap * tanh(x / cap)."""
        return self._emit(Op.SOFT_CAP, self._shape(x), reads=(x,), real=(cap,))[0]

    def pick(self, x: int) -> int:
        """Rows `Step.sampled` of x."""
        return self._emit(Op.PICK, Shape("S", self._shape(x).width), reads=(x,))[0]

    def input(self, name: str, width: int, rows: Rows = "R") -> int:
        """`Step.inputs[name]`."""
        return self._emit(Op.INPUT, Shape(rows, width), text=name)[0]

    def output(self, name: str, x: int) -> None:
        """Hand x out of the step."""
        self._emit(Op.OUTPUT, reads=(x,), text=name)

    def _same(self, x: int, y: int) -> None:
        if self._shape(x) != self._shape(y):
            raise ValueError(f"shapes must be equal, got {self._shape(x)} and {self._shape(y)}")
