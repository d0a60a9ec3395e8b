"""Cases for every verb, `CASES[verb]`: odd widths, row counts around every kernel switch, long and short contexts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from pagoda.backends.ops import Experts, Floats, KVGroup, KVLayer, RopeTable
from pagoda.config import KV_FORMATS

from .cases import Case, make_step, make_table, plain_step
from .formats import FORMATS, QUANTISED, random_tensor

ROWS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 15, 16, 17, 31, 32, 33, 64, 70)
WIDTHS = (1, 2, 7, 8, 15, 16, 17, 31, 33, 64, 100, 255, 576)


def normal(rng: np.random.Generator, rows: int, width: int, size: float = 1.0) -> Floats:
    return (rng.standard_normal((rows, width)) * size).astype(np.float32)


def uneven(rng: np.random.Generator, rows: int, width: int) -> Floats:
    """Rows of very different size, with blocks of zeros and lone large numbers in them."""
    x = normal(rng, rows, width) * 10.0 ** rng.uniform(-3, 3, (rows, 1))
    x[rng.random((rows, width)) < 0.02] *= 50
    x[rng.random(rows) < 0.1, : width // 2] = 0
    return x.astype(np.float32)


def borders(rng: np.random.Generator, rows: int, width: int) -> Floats:
    """Numbers within a rounding or two of the border between two int8 values: other arithmetic than is laid down for
    quantising activations gives other integers. The first row's borders are met exactly: ties go to even."""
    x = np.empty((rows, width), np.float32)
    for start in range(0, width, 32):
        amax = rng.uniform(0.1, 10, (rows, 1)).astype(np.float32)
        amax[0] = 127
        block = (amax * (rng.integers(-127, 127, (rows, 32)) + 0.5) / 127).astype(np.float32)
        towards = np.float32([-np.inf, 0, np.inf])[rng.integers(0, 3, block.shape)]
        x[:, start : start + 32] = np.where(towards == 0, block, np.nextafter(block, towards))
        x[0, start : start + 32] = block[0]
        x[:, start + 5] = amax[:, 0]
    return x


def vanishing(rng: np.random.Generator, rows: int, width: int) -> Floats:
    """Blocks from small to subnormal, where 127 / max|x| overflows: finite in, finite out."""
    exponents = np.repeat(rng.integers(-44, -28, (rows, width // 32)), 32, axis=1)
    return (rng.uniform(-1, 1, (rows, width)) * 10.0**exponents).astype(np.float32)


def whole_blocks(name: str, width: int) -> int:
    """The least width from `width` on that rows of a format can have."""
    block = FORMATS[name].block
    return -(-width // block) * block


def some_rows(rng: np.random.Generator, rows: int) -> list[int]:
    """Rows to sample, ascending; now and then none, now and then all."""
    count = int(rng.choice([0, 1, rows, rng.integers(0, rows + 1)]))
    return sorted(rng.choice(rows, count, replace=False).tolist())


def embed_cases() -> Iterator[Case]:
    for name in FORMATS:
        for rows, least in ((1, 32), (5, 96), (33, 576)):
            width = whole_blocks(name, least)
            rng = np.random.default_rng(rows)
            step = plain_step(rows, ids=rng.integers(0, 50, rows).astype(np.int32))

            def build(ops: Any, w: list[Any]) -> None:
                ops.output("R.x", ops.embed(w[0]))

            # The numbers that the file stands for, to the last bit.
            tensors = (random_tensor(rng, name, (50, width)),)
            yield Case(f"embed-{name}-{rows}x{width}", build, (step,), tensors, tolerance=0)


def _product(
    rows: int,
    k: int,
    weights: Sequence[tuple[str, int]],
    seed: int,
    sampled: Sequence[int] | None = None,
    make: Callable[[np.random.Generator, int, int], Floats] = uneven,
) -> Case:
    """`linear` of one x by weights given as (format, n); of the sampled rows alone if `sampled` is given."""
    rng = np.random.default_rng(seed)
    cls = "R" if sampled is None else "S"
    x = make(rng, rows if sampled is None else len(sampled), k)
    tensors = tuple(random_tensor(rng, name, (n, k), 0.3) for name, n in weights)

    def build(ops: Any, w: list[Any]) -> None:
        read = ops.input(f"{cls}.x", k, cls)
        if len(w) == 1:
            ops.output(f"{cls}.0", ops.linear(read, w[0], "layers.0.q"))
            return
        for i, y in enumerate(ops.linear(read, w)):
            ops.output(f"{cls}.{i}", y)

    size = np.linalg.norm(x.astype(np.float64), axis=1).astype(np.float32) * 0.3
    return Case(
        f"linear-{make.__name__}-{'+'.join(f'{name}x{n}' for name, n in weights)}-{cls}{len(x)}x{k}",
        build,
        (plain_step(rows, sampled or (), inputs={f"{cls}.x": x}),),
        tensors,
        tolerance=1e-5,
        floor={f"{cls}.{i}": size for i in range(len(tensors))},
    )


def linear_cases() -> Iterator[Case]:
    for f, name in enumerate(FORMATS):
        for i, rows in enumerate(ROWS):
            rng = np.random.default_rng(100 * f + i)
            n = int(rng.choice([1, 3, 5, 8, 15, 16, 17, 33, 100, 192]))
            k = int(rng.choice([32, 64, 96, 160, 576, 1536]))
            k = whole_blocks(name, k) if name in QUANTISED else k - int(rng.integers(0, 32))
            yield _product(rows, k, [(name, n)], i)
    for rows in (1, 2, 9, 33):
        yield _product(rows, 96, [("q4_1", 48), ("q4_1", 16), ("q4_1", 16)], rows)
        yield _product(rows, 64, [("q4_1", 33), ("q8_0", 7)], rows)
        yield _product(rows, 64, [("f32", 5), ("q4_0", 40), ("bf16", 17)], rows)
        yield _product(rows, 256, [("q4_k", 20), ("q6_k", 16), ("q5_0", 3)], rows)
    yield _product(40, 96, [("q8_0", 257)], 1, sampled=[0, 7, 39])
    yield _product(5, 96, [("q4_1", 100)], 2, sampled=[])
    for name in QUANTISED:
        yield _product(9, whole_blocks(name, 160), [(name, 40)], 4, make=borders)
        yield _product(5, whole_blocks(name, 96), [(name, 9)], 5, make=vanishing)
    # Enough work that threads share it.
    yield _product(3, 2048, [("q4_0", 64)], 3)
    yield _product(1, 96, [("q8_0", 6001)], 6)
    yield _product(70, 576, [("q4_1", 768), ("q4_1", 192)], 7)
    # More rows than have their chains at hand between two runs of blocks.
    yield _product(299, 768, [("q4_k", 40), ("q8_0", 33)], 8)


def ordered_cases() -> Iterator[Case]:
    """`linear` by matrices whose columns are in an order of their own: one, several that share it, and several that do
    not, some of which read integers."""
    for rows, k, weights, orders in (
        (1, 64, [("q4_0", 33)], (1,)),
        (5, 128, [("q4_z128", 17), ("q4_z32", 48)], (1, 1)),
        (9, 96, [("q4_z32", 40), ("q8_0", 5), ("q4_0", 16), ("f16", 7)], (1, 2, 0, 1)),
        (33, 256, [("f8_e4m3", 20), ("q8_z128", 100)], (3, 0)),
    ):
        case = _product(rows, k, weights, rows)
        permutations = [np.random.default_rng(i).permutation(k).astype(np.int32) for i in range(4)]
        tensors = tuple(
            replace(t, order=permutations[i] if i else None) for t, i in zip(case.tensors, orders, strict=True)
        )
        yield replace(case, name=f"{case.name}-ordered", tensors=tensors)


def bias_cases() -> Iterator[Case]:
    """`linear` with biases: of one weight, and of several that do not read the same form of x."""
    for rows, k, weights in (
        (1, 64, [("q4_1", 33)]),
        (5, 96, [("f16", 17)]),
        (9, 64, [("q8_0", 48), ("f32", 5), ("q4_0", 200)]),
        (40, 576, [("q4_1", 576), ("q4_1", 192), ("q4_1", 192)]),
    ):
        case = _product(rows, k, weights, rows)
        rng = np.random.default_rng(rows)
        biases = tuple(random_tensor(rng, "f32", (n,), 3) for _, n in weights)

        def build(ops: Any, w: list[Any], k: int = k, count: int = len(weights)) -> None:
            x = ops.input("R.x", k)
            several = ops.linear(x, w[:count], "", w[count:]) if count > 1 else [ops.linear(x, w[0], "", w[1])]
            for i, y in enumerate(several):
                ops.output(f"R.{i}", y)

        yield replace(case, name=case.name + "-bias", build=build, tensors=(*case.tensors, *biases))


def norm_cases() -> Iterator[Case]:
    for i, width in enumerate(WIDTHS):
        for rows in (1, 5, 33):
            rng = np.random.default_rng(10 * i + rows)
            x = uneven(rng, rows, width)
            x[rows // 2] = 0

            def build(ops: Any, w: list[Any], width: int = width) -> None:
                ops.output("R.y", ops.norm(ops.input("R.x", width), w[0], 1e-5))

            yield Case(
                f"norm-{rows}x{width}",
                build,
                (plain_step(rows, inputs={"R.x": x}),),
                (random_tensor(rng, "f32", (width,)),),
                elementwise=True,
            )
    for heads, dim in ((2, 1), (3, 17), (5, 64), (1, 33)):
        rng = np.random.default_rng(heads)

        def per_head(ops: Any, w: list[Any], heads: int = heads, dim: int = dim) -> None:
            ops.output("R.y", ops.norm(ops.input("R.x", heads * dim), w[0], 1e-5, heads))

        yield Case(
            f"norm-{heads}heads-of-{dim}",
            per_head,
            (plain_step(7, inputs={"R.x": uneven(rng, 7, heads * dim)}),),
            (random_tensor(rng, "f32", (dim,)),),
            elementwise=True,
        )


def rope_table(positions: int, dims: int, adjacent: bool, theta: float = 1e4) -> RopeTable:
    angles = np.outer(np.arange(positions), theta ** -(np.arange(0, dims, 2) / dims))
    return RopeTable(np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32), adjacent)


def rope_cases() -> Iterator[Case]:
    for dim, dims in ((32, 32), (64, 64), (80, 80), (128, 128), (64, 32), (80, 20), (6, 6), (10, 2)):
        for adjacent in (False, True):
            for heads, groups, spans in ((1, 1, [(0, 1)]), (4, 2, [(3, 9), (250, 260)]), (9, 3, [(0, 33), (290, 300)])):
                rng = np.random.default_rng(dim + heads)
                rows = sum(b - a for a, b in spans)
                inputs = {"R.q": normal(rng, rows, heads * dim), "R.k": normal(rng, rows, groups * dim)}
                table = rope_table(300, dims, adjacent)

                def build(
                    ops: Any, w: list[Any], d: int = dim, h: int = heads, g: int = groups, t: RopeTable = table
                ) -> None:
                    q, k = ops.rope(ops.input("R.q", h * d), ops.input("R.k", g * d), d, t)
                    ops.output("R.q", q)
                    ops.output("R.k", k)

                order = "adjacent" if adjacent else "halves"
                yield Case(f"rope-{dims}of{dim}-{order}-{heads}:{groups}", build, (make_step(spans, inputs=inputs),))


def attention(
    head_dim: int,
    groups: int,
    per_group: int,
    spans: Sequence[Sequence[tuple[int, int]]],
    page_size: int = 16,
    kv_format: str = "f32",
    sharp: float = 1.0,
    seed: int = 0,
    window: int | None = None,
    soft_cap: float | None = None,
    sinks: bool = False,
) -> Case:
    """`attend` over one step for each of `spans`, a list of (start, end) per sequence; the data depends on neither
    page size nor format. `sharp` scales the scores."""
    rng = np.random.default_rng(seed)
    widths = {"R.q": groups * per_group * head_dim, "R.k": groups * head_dim, "R.v": groups * head_dim}
    inputs = []
    for step in spans:
        rows = sum(b - a for a, b in step)
        inputs.append({name: normal(rng, rows, width) for name, width in widths.items()})
    table = make_table(rng, [max(step[s][1] for step in spans) for s in range(len(spans[0]))], page_size)

    def build(ops: Any, w: list[Any]) -> None:
        kv = KVLayer(0, 1, groups, head_dim, sharp * head_dim**-0.5, window, soft_cap, w[0] if w else None)
        q, k, v = (ops.input(name, width) for name, width in widths.items())
        ops.output("R.y", ops.attend(q, k, v, kv))

    ends = "/".join(",".join(f"{a}-{b}" for a, b in step) for step in spans)
    form = "".join(f"-{name}{x}" for name, x in (("w", window), ("cap", soft_cap), ("sinks", sinks)) if x)
    return Case(
        f"attend-{head_dim}x{groups}x{per_group}-p{page_size}-{kv_format}-x{sharp:g}{form}-{ends}",
        build,
        tuple(make_step(s, (table,), inputs=x) for s, x in zip(spans, inputs, strict=True)),
        (random_tensor(rng, "f32", (groups * per_group,), 3.0),) if sinks else (),
        groups=(KVGroup(2, groups, head_dim),),
        pages=int((table != 2**31 - 1).sum()) + 1,
        page_size=page_size,
        kv_format=kv_format,
        tolerance=2e-5 * sharp,
    )


SPANS: tuple[list[list[tuple[int, int]]], ...] = (
    [[(0, 1)]],
    [[(0, 17)]],
    [[(0, 5), (0, 16), (0, 33), (0, 1)]],
    [[(0, 15), (0, 31)], [(15, 16), (31, 34)], [(16, 17), (34, 35)], [(17, 40), (35, 36)]],
    [[(0, 255), (0, 3)], [(255, 256), (3, 4)], [(256, 257), (4, 12)], [(257, 258), (12, 13)]],
)
"""Of `attention`: lengths on both sides of pages and of multiples of 16 and 256."""


def attend_cases() -> Iterator[Case]:
    shapes = ((32, 1, 1), (64, 3, 3), (80, 2, 4), (128, 1, 8), (32, 4, 2), (64, 2, 5), (80, 1, 7), (128, 3, 1))
    sizes = (1, 4, 16, 32)
    for i, (shape, kv_format) in enumerate((s, f) for s in shapes for f in KV_FORMATS):
        for j, spans in enumerate(SPANS):
            yield attention(*shape, spans, sizes[(i + i // 4 + j) % 4], kv_format, seed=i)
    yield attention(64, 3, 3, [[(0, 70)]], sharp=20)
    yield from windowed_cases()
    for kv_format in KV_FORMATS[1:]:
        yield attention(64, 3, 3, [[(0, 530), (0, 2)], [(530, 531), (2, 3)]], 16, kv_format)


def windowed_cases() -> Iterator[Case]:
    """Windows of one key, shorter and longer than a page and a span; soft caps and sinks, with windows and without."""
    long = [[(0, 300), (0, 5)], [(300, 301), (5, 9)], [(301, 304), (9, 10)]]
    for i, kv_format in enumerate(KV_FORMATS):
        for j, window in enumerate((1, 3, 20, 256, 280)):
            cap, sinks = (None, 4.0, 30.0)[(i + j) % 3], (i + j) % 2 == 0
            yield attention(64, 2, 3, long, (4, 16, 64)[(i + j) % 3], kv_format, 3, j, window, cap, sinks)
        yield attention(80, 1, 2, SPANS[-1], 16, kv_format, 5, soft_cap=20.0)
        yield attention(32, 2, 2, SPANS[-1], 4, kv_format, sinks=True)
    yield attention(32, 1, 2, [[(0, 800)], [(800, 801)]], window=600, sinks=True)
    yield attention(32, 1, 2, [[(0, 600)], [(600, 601)]], window=90, soft_cap=50.0)


def act_cases() -> Iterator[Case]:
    ladder = np.array([0, -0.0, 1e-30, 1, -1, 20, -20, 80, -80, 88, -88, 95, -110, 1e4, -1e4, 3e38, -3e38], np.float32)
    for width in WIDTHS:
        for rows in (1, 4, 33):
            rng = np.random.default_rng(width + rows)
            gate, up = uneven(rng, rows, width), normal(rng, rows, width)
            gate[0] = np.resize(ladder, width)
            gate[-1] = normal(rng, 1, width, 3)

            def build(ops: Any, w: list[Any], width: int = width) -> None:
                ops.output("R.y", ops.act(ops.input("R.gate", width), ops.input("R.up", width), "silu"))

            step = plain_step(rows, inputs={"R.gate": gate, "R.up": np.clip(up, -1, 1)})
            yield Case(f"act-{rows}x{width}", build, (step,), elementwise=True)

            def gelu(ops: Any, w: list[Any], width: int = width) -> None:
                ops.output("R.y", ops.act(ops.input("R.gate", width), ops.input("R.up", width), "gelu_tanh"))

            def clamped(ops: Any, w: list[Any], width: int = width) -> None:
                ops.output("R.y", ops.act(ops.input("R.gate", width), ops.input("R.up", width), "swiglu_clamped"))

            step = plain_step(rows, inputs={"R.gate": gate, "R.up": uneven(rng, rows, width)})
            yield Case(f"clamped-{rows}x{width}", clamped, (step,), tolerance=2e-5)

            # Cubes of larger numbers leave the range of f32.
            step = plain_step(rows, inputs={"R.gate": np.clip(gate, -1e9, 1e9), "R.up": np.clip(up, -1, 1)})
            # As far as a negative number's e^z is small, an error of z is one of the quotient.
            yield Case(f"gelu-{rows}x{width}", gelu, (step,), tolerance=2e-5, elementwise=True)


def add_cases() -> Iterator[Case]:
    for width in WIDTHS:
        for rows in (1, 33):
            rng = np.random.default_rng(width + rows)

            def build(ops: Any, w: list[Any], width: int = width) -> None:
                x = ops.add(ops.input("R.x", width), ops.input("R.y", width))
                ops.output("R.z", ops.add(x, x))

            step = plain_step(rows, inputs={"R.x": uneven(rng, rows, width), "R.y": uneven(rng, rows, width)})
            yield Case(f"add-{rows}x{width}", build, (step,), tolerance=0)


def moe_cases() -> Iterator[Case]:
    """Scores with ties; experts that get no row, one, or all of them; every way a weight reads its input."""
    shapes = (
        (1, 64, 32, 4, 2, "q4_1"),
        (7, 96, 64, 5, 1, "q8_0"),
        (33, 64, 96, 3, 3, "q4_0"),
        (9, 50, 37, 6, 4, "f16"),
    )
    for rows, width, hidden, count, chosen, name in shapes:
        for kind, routing, biased in (("silu", "chosen", False), ("swiglu_clamped", "all", True)):
            rng = np.random.default_rng(rows)
            scores = np.round(normal(rng, rows, count, 2))
            scores[:, 0] += 3  # one that most rows want
            shapes_of = [(hidden, width)] * (2 * count) + [(width, hidden)] * count
            tensors = [random_tensor(rng, name, shape, 0.3) for shape in shapes_of]
            biases = [random_tensor(rng, "f32", (count, n), 1) for n in (hidden, hidden, width)]

            def build(
                ops: Any, w: list[Any], e: int = count, c: int = chosen, k: Any = kind, r: Any = routing,
                b: bool = biased, d: int = width,
            ) -> None:  # fmt: skip
                experts = Experts(w[:e], w[e : 2 * e], w[2 * e : 3 * e], (w[-3], w[-2], w[-1]) if b else None)
                ops.output("R.y", ops.moe(ops.input("R.x", d), ops.input("R.scores", e), experts, c, k, r))

            step = plain_step(rows, inputs={"R.x": normal(rng, rows, width), "R.scores": scores})
            # A number on the border of two integers may be read as either, as through a whole model.
            yield Case(
                f"moe-{rows}x{width}-{chosen}of{count}-{name}-{kind}",
                build,
                (step,),
                (*tensors, *biases),
                tolerance=2e-3,
            )


def scale_cases() -> Iterator[Case]:
    for width in WIDTHS:
        rng = np.random.default_rng(width)

        def build(ops: Any, w: list[Any], width: int = width) -> None:
            ops.output("R.y", ops.scale(ops.input("R.x", width), 640**0.5))

        step = plain_step(5, inputs={"R.x": uneven(rng, 5, width)})
        yield Case(f"scale-{width}", build, (step,), tolerance=0)


def soft_cap_cases() -> Iterator[Case]:
    for width in WIDTHS:
        rng = np.random.default_rng(width)
        x = normal(rng, 9, width, 40)
        x[0] = np.resize(
            np.array([0, -0.0, 1e-30, 30, -30, 1e4, -1e4, 3e38, -3e38, np.inf, -np.inf], np.float32), width
        )

        def build(ops: Any, w: list[Any], width: int = width) -> None:
            ops.output("R.y", ops.add(ops.soft_cap(ops.input("R.x", width), 30.0), ops.input("R.hundred", width)))

        hundred = np.full((9, width), 100, np.float32)
        yield Case(f"soft_cap-{width}", build, (plain_step(9, inputs={"R.x": x, "R.hundred": hundred}),))


def pick_cases() -> Iterator[Case]:
    for rows in ROWS:
        for width in (1, 33, 576):
            rng = np.random.default_rng(rows + width)
            step = plain_step(rows, some_rows(rng, rows), inputs={"R.x": normal(rng, rows, width)})

            def build(ops: Any, w: list[Any], width: int = width) -> None:
                ops.output("S.x", ops.pick(ops.input("R.x", width)))

            yield Case(f"pick-{len(step.sampled)}of{rows}x{width}", build, (step,), tolerance=0)


def input_cases() -> Iterator[Case]:
    for rows, sampled in ((1, [0]), (3, []), (33, [1, 5, 32])):
        rng = np.random.default_rng(rows)
        inputs = {"R.x": normal(rng, rows, 7), "S.x": normal(rng, len(sampled), 33)}

        def build(ops: Any, w: list[Any]) -> None:
            ops.output("R.x", ops.input("R.x", 7))
            ops.output("S.x", ops.input("S.x", 33, "S"))

        yield Case(f"input-{rows}-{len(sampled)}", build, (plain_step(rows, sampled, inputs=inputs),), tolerance=0)


def output_cases() -> Iterator[Case]:
    """A value may be handed out and used further, and handed out under two names."""
    for rows in (1, 5, 33):
        rng = np.random.default_rng(rows)

        def build(ops: Any, w: list[Any]) -> None:
            x = ops.input("R.x", 33)
            y = ops.add(x, x)
            ops.output("R.y", y)
            z = ops.add(y, x)
            ops.output("R.z", z)
            ops.output("R.again", y)
            ops.output("S.z", ops.pick(z))

        step = plain_step(rows, [0, rows - 1] if rows > 1 else [0], inputs={"R.x": normal(rng, rows, 33)})
        yield Case(f"output-{rows}", build, (step,), tolerance=0)


CASES = {
    "embed": [*embed_cases()],
    "linear": [*linear_cases(), *bias_cases(), *ordered_cases()],
    "norm": [*norm_cases()],
    "rope": [*rope_cases()],
    "attend": [*attend_cases()],
    "act": [*act_cases()],
    "moe": [*moe_cases()],
    "add": [*add_cases()],
    "scale": [*scale_cases()],
    "soft_cap": [*soft_cap_cases()],
    "pick": [*pick_cases()],
    "input": [*input_cases()],
    "output": [*output_cases()],
}
