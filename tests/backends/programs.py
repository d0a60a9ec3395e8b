"""Random programs: verbs in any order over values read once, often or never, as no model would write them."""

from __future__ import annotations

from typing import Any

import numpy as np

from pagoda.backends.ops import KVGroup, KVLayer, RopeTable

from .cases import Case, make_step, make_table
from .formats import random_tensor
from .verbs import normal, rope_table

WIDTH, HEADS, GROUPS, DIM, LAYERS = 64, 4, 2, 16, 3
KEYS, EPS = GROUPS * DIM, 1e-3
VERBS = (
    "norm",
    "norm",
    "add",
    "act",
    "linear",
    "linear",
    "several",
    "attend",
    "input",
    "output",
    "residual",
    "scale",
    "soft_cap",
)
FORMATS = ("q4_0", "q4_1", "q8_0", "f16", "bf16", "f32")


class Writer:
    """Writes one random program, verb by verb, to any `Ops`."""

    def __init__(self, ops: Any, weights: list[Any], table: RopeTable) -> None:
        self.ops = ops
        self.square, self.narrow, self.vectors = weights[:4], weights[4:6], weights[6:]
        self.table = table
        self.values = [ops.input("R.x", WIDTH), ops.input("R.y", WIDTH)]
        self.layer = self.outputs = 0

    def value(self, n: int) -> Any:
        """The latest values are the likeliest, so that neighbours that can be fused are common."""
        return self.values[-1 - min(n % 5, n % 3, len(self.values) - 1)]

    def norm(self, x: Any, n: int) -> Any:
        return self.ops.norm(x, self.vectors[n % 2], EPS)

    def write(self, verb: str, n: list[int]) -> None:
        ops, x, y, (a, b) = self.ops, self.value(n[0]), self.value(n[1]), n[2:]
        match verb:
            case "norm":
                self.values.append(self.norm(x, a))
            case "add":
                self.values.append(ops.add(x, y))
            case "act":
                self.values.append(ops.act(self.norm(x, a), self.norm(y, b), ("silu", "gelu_tanh")[a % 2]))
            case "scale":
                self.values.append(ops.scale(x, 1 + a % 3))
            case "soft_cap":
                self.values.append(ops.soft_cap(self.norm(x, a), 5.0))
            case "linear":
                self.values.append(ops.linear(x, self.square[a % 4]))
            case "several":
                self.values.extend(ops.linear(x, [self.square[i % 4] for i in (a, b, a + 1)]))
            case "residual":
                self.values.append(self.norm(ops.add(x, ops.linear(y, self.square[a % 4])), b))
            case "input":
                self.values.append(ops.input("R.x", WIDTH))
            case "output":
                self.output(x)
            case "attend" if self.layer < LAYERS:
                self.attend(x, y, a, b)

    def output(self, x: Any) -> None:
        self.outputs += 1
        self.ops.output(f"R.{self.outputs}", x)

    def attend(self, x: Any, y: Any, a: int, b: int) -> None:
        """Now and then the keys are the values too, or are read once more after they were stored."""
        k = self.ops.linear(y, self.narrow[a % 2])
        v = k if b % 3 == 0 else self.ops.linear(x, self.narrow[b % 2])
        q, turned = self.ops.rope(self.norm(x, 0), k, DIM, self.table)
        window, cap = (None, 3, 15)[a % 3], (None, 2.0)[b % 2]
        sinks = self.vectors[2] if a % 2 else None
        kv = KVLayer(0, self.layer, GROUPS, DIM, DIM**-0.5, window, cap, sinks)
        self.values.append(self.ops.attend(q, turned, v, kv))
        if b % 4 == 1:
            self.output(turned)
        self.layer += 1


def program(seed: int, length: int = 24) -> Case:
    """A case of one random program over two steps, a prompt and what follows it."""
    rng = np.random.default_rng(seed)
    recipe = [(str(rng.choice(VERBS)), rng.integers(0, 2**30, 4).tolist()) for _ in range(length)]
    square = [random_tensor(rng, str(rng.choice(FORMATS)), (WIDTH, WIDTH), WIDTH**-0.5) for _ in range(4)]
    narrow = [random_tensor(rng, str(rng.choice(FORMATS)), (KEYS, WIDTH), WIDTH**-0.5) for _ in range(2)]
    vectors = [random_tensor(rng, "f32", (size,)) for size in (WIDTH, WIDTH, HEADS)]
    table = rope_table(64, DIM, adjacent=bool(rng.integers(2)))

    def build(ops: Any, weights: list[Any]) -> None:
        writer = Writer(ops, weights, table)
        for verb, numbers in recipe:
            writer.write(verb, numbers)
        last = writer.values[-1]
        writer.output(last)
        ops.output("logits", ops.linear(writer.norm(ops.pick(last), 0), writer.square[0]))

    spans = [[(0, 5), (0, 19)], [(5, 6), (19, 20)]]
    tables = (make_table(rng, [6, 20], 4),)
    steps = tuple(
        make_step(
            span, tables, sampled,
            inputs={name: normal(rng, sum(b - a for a, b in span), WIDTH) for name in ("R.x", "R.y")},
        )
        for span, sampled in zip(spans, ([4, 23], [0, 1]), strict=True)
    )  # fmt: skip
    tensors = (*square, *narrow, *vectors)
    return Case(f"program {seed}", build, steps, tensors, (KVGroup(LAYERS, GROUPS, DIM),), 8, 4, tolerance=2e-3)
