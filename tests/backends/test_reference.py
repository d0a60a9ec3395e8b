"""The reference against formulas written once more, number by number, in plain Python; and what it refuses."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from pagoda.backends import open_backend
from pagoda.backends.ops import Floats, KVGroup, KVLayer, Ops, RopeTable, Step
from pagoda.backends.reference import UNQUANTISED, quantise_rows
from pagoda.backends.reference_step import check_step
from pagoda.backends.reference_store import ReferenceKVStore
from pagoda.errors import InvalidConfig, MemoryLimit
from pagoda.quant import by_name

from .cases import Case, make_step, plain_step, run
from .formats import FORMATS, random_tensor
from .opening import opened
from .verbs import attention, normal, rope_table, uneven

F32 = np.float32


TOPS = {"int8": 127, "int16": 32767}


def integer_block(block: list[Any], top: int) -> list[float]:
    """A block of f32 as the integer paths read it, one number at a time."""
    amax = max(abs(x) for x in block)
    if amax == 0:
        return [0.0] * len(block)
    inverse = F32(top) / amax
    return [round(float(F32(x * inverse))) * float(amax / F32(top)) for x in block]


def close(got: Floats, want: Any) -> None:
    np.testing.assert_allclose(got, np.array(want), rtol=1.2e-7, atol=1e-37)


@pytest.mark.parametrize("top", TOPS.values())
@pytest.mark.parametrize("width", [1, 5, 31, 32, 33, 64, 100])
def test_quantised_activations(width: int, top: int) -> None:
    x = uneven(np.random.default_rng(width), 9, width)
    want = [[y for i in range(0, width, 32) for y in integer_block(list(row[i : i + 32]), top)] for row in x]
    np.testing.assert_array_equal(quantise_rows(x, top), np.array(want))


def test_quantised_activations_round_half_to_even() -> None:
    x = np.array([[127, 0.5, 1.5, 2.5, -0.5, -1.5, -126.5, 126.5]], F32)
    assert quantise_rows(x, 127).tolist() == [[127, 0, 2, 2, 0, -2, -126, 126]]


def test_quantised_activations_of_vanishing_blocks() -> None:
    """127 / 1e-38 is no f32: such a block counts as zeros, as one of zeros does."""
    x = np.array([[0.0] * 32 + [1e-38, -5e-39] * 16 + [1e-30] * 32], F32)
    read = quantise_rows(x, 127)
    assert not read[:, :64].any()
    np.testing.assert_allclose(read[:, 64:], 1e-30, rtol=1e-6)


@pytest.mark.parametrize("fmt", FORMATS)
@pytest.mark.parametrize("activations", ["int16", "int8", "f32"])
def test_linear(fmt: str, activations: str) -> None:
    rng = np.random.default_rng(5)
    width = 256  # a whole block of every format
    tensor = random_tensor(rng, fmt, (7, width))
    x = uneven(rng, 3, width)
    read = [list(map(float, row)) for row in x]
    if activations in TOPS and fmt not in UNQUANTISED:
        top = TOPS[activations]
        read = [[y for i in range(0, width, 32) for y in integer_block(list(row[i : i + 32]), top)] for row in x]
    want = [[math.fsum(a * float(b) for a, b in zip(row, w, strict=True)) for w in tensor.floats()] for row in read]
    case = Case(
        "",
        lambda ops, w: ops.output("R.y", ops.linear(ops.input("R.x", width), w[0])),
        (plain_step(3, inputs={"R.x": x}),),
        (tensor,),
    )
    got = run(opened("reference", activations=activations), case)[0]["R.y"]
    np.testing.assert_allclose(got, np.array(want), rtol=2e-6)


def test_norm_act_embed() -> None:
    rng = np.random.default_rng(6)
    gate, up, weight, rows = (normal(rng, n, 33) for n in (4, 4, 1, 50))
    tensors = (random_tensor(rng, "f32", (33,)), random_tensor(rng, "f32", (50, 33)))
    weight, rows = tensors[0].floats(), tensors[1].floats()

    def build(ops: Any, w: list[Any]) -> None:
        g, u = ops.input("R.g", 33), ops.input("R.u", 33)
        ops.output("R.norm", ops.norm(g, w[0], 0.25))
        ops.output("R.act", ops.act(g, u, "silu"))
        ops.output("R.embed", ops.embed(w[1]))

    ids = np.array([49, 0, 3, 3], np.int32)
    got = run(
        opened("reference"), Case("", build, (plain_step(4, ids=ids, inputs={"R.g": gate, "R.u": up}),), tensors)
    )[0]
    mean = [math.fsum(float(x) ** 2 for x in row) / 33 for row in gate]
    close(
        got["R.norm"],
        [
            [float(x) / math.sqrt(m + 0.25) * float(w) for x, w in zip(row, weight, strict=True)]
            for row, m in zip(gate, mean, strict=True)
        ],
    )
    close(
        got["R.act"],
        [
            [float(g) / (1 + math.exp(-float(g))) * float(u) for g, u in zip(a, b, strict=True)]
            for a, b in zip(gate, up, strict=True)
        ],
    )
    assert np.array_equal(got["R.embed"], rows[ids])


@pytest.mark.parametrize("adjacent", [False, True])
@pytest.mark.parametrize("dims", [4, 10])
def test_rope_is_complex_multiplication(adjacent: bool, dims: int) -> None:
    """Pair i of a head at position p turns by p * theta ** (-2i / dims)."""
    rng = np.random.default_rng(7)
    head_dim, spans = 10, [(2, 5), (40, 42)]
    inputs = {"R.q": normal(rng, 5, 30), "R.k": normal(rng, 5, 10)}

    def build(ops: Any, w: list[Any]) -> None:
        q, k = ops.rope(ops.input("R.q", 30), ops.input("R.k", 10), head_dim, rope_table(50, dims, adjacent))
        ops.output("R.q", q)
        ops.output("R.k", k)

    got = run(opened("reference"), Case("", build, (make_step(spans, inputs=inputs),)))[0]
    for name, x in inputs.items():
        want = x.astype(np.float64)
        for row, position in enumerate([2, 3, 4, 40, 41]):
            for head in range(0, x.shape[1], head_dim):
                for i in range(dims // 2):
                    first, second = (2 * i, 2 * i + 1) if adjacent else (i, i + dims // 2)
                    turn = complex(
                        math.cos(position * 1e4 ** (-2 * i / dims)), math.sin(position * 1e4 ** (-2 * i / dims))
                    )
                    turned = complex(x[row, head + first], x[row, head + second]) * turn
                    want[row, head + first], want[row, head + second] = turned.real, turned.imag
        np.testing.assert_allclose(got[name], want, atol=5e-7)


@pytest.mark.parametrize("kv_format", ["f32", "f16"])
@pytest.mark.parametrize("page_size", [1, 4, 16])
def test_attend(kv_format: str, page_size: int) -> None:
    """Dense causal attention over each sequence's own rows, chunk after chunk, head by head."""
    spans = [[(0, 5), (0, 16)], [(5, 9), (16, 17)]]
    groups, per_group, dim = 2, 3, 8
    case = attention(dim, groups, per_group, spans, page_size, kv_format)
    got = run(opened("reference"), case)
    stored = np.float16 if kv_format == "f16" else np.float32
    keys: list[list[Any]] = [[], []]
    values: list[list[Any]] = [[], []]
    for step, result in zip(case.steps, got, strict=True):
        for row, sequence in enumerate(step.sequences):
            q, k, v = (step.inputs[name][row].reshape(-1, dim) for name in ("R.q", "R.k", "R.v"))
            keys[sequence].append(k.astype(stored).astype(float))
            values[sequence].append(v.astype(stored).astype(float))
            for h in range(groups * per_group):
                g = h // per_group
                scores = [math.fsum(q[h] * k[g]) / math.sqrt(dim) for k in keys[sequence]]
                weights = [math.exp(s) for s in scores]
                want = sum(w * v[g] for w, v in zip(weights, values[sequence], strict=True)) / math.fsum(weights)
                np.testing.assert_allclose(result["R.y"][row, h * dim : (h + 1) * dim], want, rtol=1e-6, atol=1e-7)


def test_numbers_beyond_f16_are_stored_as_infinite() -> None:
    store = ReferenceKVStore([KVGroup(1, 1, 2)], [1], 4, "f16")
    one = np.zeros(1, np.int32)
    store.write(KVLayer(0, 0, 1, 2, 1.0), one, one, np.array([[1e6, 1]], F32), np.array([[-1e6, 2]], F32))
    store.check()
    assert store.keys[0][0, 0, 0].tolist() == [[math.inf, 1]]
    assert store.values[0][0, 0, 0].tolist() == [[-math.inf, 2]]


def test_kv_store_random_operations() -> None:
    """Writes and copies in random order, against a dictionary; `check` after each."""
    rng = np.random.default_rng(8)
    layers, pages, page_size, dim = 2, 4, 4, 3
    store = ReferenceKVStore([KVGroup(layers, 1, dim)], [pages], page_size, "f32")
    model: dict[tuple[int, int, int], float] = {}
    for _ in range(400):
        if rng.random() < 0.7:
            layer, page, slot, number = (
                *(int(rng.integers(n)) for n in (layers, pages, page_size)),
                float(rng.integers(999)),
            )
            x = np.full((1, dim), number, F32)
            places = np.array([page], np.int32), np.array([slot], np.int32)
            store.write(KVLayer(0, layer, 1, dim, 1.0), *places, x, -x)
            model[layer, page, slot] = number
        else:
            source, target, slots = int(rng.integers(pages)), int(rng.integers(pages)), int(rng.integers(page_size + 1))
            store.copy(0, source, target, slots)
            for layer in range(layers):
                for slot in range(slots):
                    model.pop((layer, target, slot), None) if source != target else None
                    if (layer, source, slot) in model:
                        model[layer, target, slot] = model[layer, source, slot]
        store.check()
        assert set(zip(*map(np.ndarray.tolist, np.nonzero(store.written[0])), strict=True)) == set(model)
        for place, number in model.items():
            assert (store.keys[0][place] == number).all()
            assert (store.values[0][place] == -number).all()


def test_check_sees_a_damaged_store() -> None:
    store = ReferenceKVStore([KVGroup(1, 1, 2)], [2], 4, "f32")
    store.check()
    store.keys[0][0, 1, 2] = 1
    with pytest.raises(AssertionError, match="never written"):
        store.check()


def refuse(match: str, build: Callable[[Any], Any], step: Step, groups: tuple[KVGroup, ...] = ()) -> None:
    backend = open_backend("reference")
    kv = backend.kv_store(groups, [2] * len(groups), 4, "f32")
    with pytest.raises(ValueError, match=match):
        backend.program(build).run(kv, step)


def test_refuses_what_a_model_gets_wrong() -> None:
    backend, rng = opened("reference"), np.random.default_rng(9)
    matrix, vector = (backend.weight(random_tensor(rng, "f32", shape)) for shape in ((5, 7), (7,)))
    x = {"x": normal(rng, 2, 6)}
    step = plain_step(2, inputs=x)
    refuse("token ids run from 0 to 4", lambda ops: ops.embed(matrix), plain_step(1, ids=np.array([5], np.int32)))
    refuse("token ids run from 0 to 4", lambda ops: ops.embed(matrix), plain_step(1, ids=np.array([-1], np.int32)))
    refuse(r"is \(5, 7\), its input \(2, 6\)", lambda ops: ops.linear(ops.input("x", 6), matrix), step)
    refuse(r"is \(7,\), its input \(2, 6\)", lambda ops: ops.norm(ops.input("x", 6), vector, 1e-5), step)
    refuse(
        "silu, gelu_tanh, swiglu_clamped, got 'gelu'",
        lambda ops: ops.act(ops.input("x", 6), ops.input("x", 6), "gelu"),
        step,
    )
    refuse("inputs .*'x'.*'y'", lambda ops: ops.input("y", 6), step)
    refuse("must be .*float32", lambda ops: ops.input("x", 7), step)
    refuse("must be .*float32", lambda ops: ops.input("x", 6, "S"), step)
    sampled = plain_step(2, [0], inputs=x)
    refuse("shapes", lambda ops: ops.add(ops.input("x", 6), ops.pick(ops.input("x", 6))), sampled)
    refuse("shapes", lambda ops: ops.act(ops.input("x", 6), ops.pick(ops.input("x", 6)), "silu"), sampled)
    refuse("pick takes one row", lambda ops: ops.pick(ops.pick(ops.input("x", 6))), sampled)
    refuse("there already", lambda ops: [ops.output("y", ops.input("x", 6)) for _ in range(2)], step)
    far = make_step([(9, 11)], inputs=x)
    refuse("position 10 .* 10 of", lambda ops: ops.rope(*[ops.input("x", 6)] * 2, 6, rope_table(10, 6, False)), far)


def test_refuses_wrong_places_in_the_cache() -> None:
    group, layer = KVGroup(1, 1, 4), KVLayer(0, 0, 1, 4, 1.0)
    rng = np.random.default_rng(10)

    def attend(step: Step, match: str, kv: KVLayer = layer, widths: tuple[int, ...] = (8, 4, 4)) -> None:
        x = {str(i): normal(rng, len(step.ids), width) for i, width in enumerate(widths)}
        refuse(
            match,
            lambda ops: ops.attend(*(ops.input(str(i), w) for i, w in enumerate(widths)), kv),
            replace(step, inputs=x),
            (group,),
        )

    def table(*rows: list[int]) -> tuple[Any, ...]:
        return (np.array(rows, np.int32),)

    attend(make_step([(0, 2)], table([2])), r"pages 0 to 1, got \[2, 2\]")
    attend(make_step([(0, 2)], table([-1])), r"pages 0 to 1, got \[-1, -1\]")
    attend(make_step([(3, 5)], table([0])), "position 4 is beyond the page table's 1 pages")
    attend(make_step([(3, 5)], table([0, 1])), "position 0 of KV group 0 is read but was never written")
    attend(make_step([(0, 2), (1, 2)], table([1], [1])), "same slot of KV group 0")
    attend(make_step([(0, 2)], table([0])), "does not fit", KVLayer(0, 1, 1, 4, 1.0))
    attend(make_step([(0, 2)], table([0])), "does not fit", KVLayer(0, 0, 2, 4, 1.0))
    attend(make_step([(0, 2)], table([0])), "cannot take", widths=(6, 4, 4))
    attend(make_step([(0, 2)], table([0])), "cannot take", widths=(8, 4, 8))


def test_refuses_wrong_steps() -> None:
    good = make_step([(0, 2), (5, 6)], (np.zeros((2, 2), np.int32),), [0, 2])
    check_step(good, 1)

    def ints(*numbers: int) -> Any:
        return np.array(numbers, np.int32)

    for change, match in (
        ({"ids": np.zeros(3)}, "Step.ids must be one row of int32"),
        ({"positions": ints(0)}, "Step.positions must have 3 numbers"),
        ({"ids": ints(), "positions": ints(), "sequences": ints(), "sampled": ints()}, "at least one row"),
        ({"positions": ints(-1, 0, 5)}, "must not be negative"),
        ({"sequences": ints(0, 1, 0)}, "must not descend"),
        ({"positions": ints(1, 1, 5)}, "must ascend within a sequence"),
        ({"sampled": ints(3)}, "ascending rows under 3"),
        ({"sampled": ints(2, 0)}, "ascending rows under 3"),
        ({"slots": ints(7)}, "one slot for each of 2 sequences"),
        ({"tables": ()}, "one table for each of 1 KV groups"),
        ({"tables": (np.zeros((1, 2), np.int32),)}, "page table must be"),
        ({"tables": (np.zeros((2, 2), np.int64),)}, "page table must be"),
    ):
        with pytest.raises(ValueError, match=match):
            check_step(replace(good, **change), 1)


def test_refuses_wrong_options() -> None:
    backend = open_backend("reference")
    with pytest.raises(InvalidConfig, match="one of cpu, reference, got 'gpu'"):
        open_backend("gpu")
    with pytest.raises(InvalidConfig, match="int4"):
        open_backend("reference", activations="int4")
    with pytest.raises(InvalidConfig, match="threads must be positive, got 0"):
        open_backend("reference", threads=0)
    with pytest.raises(InvalidConfig, match="int3"):
        backend.kv_store([], [], 16, "int3")
    with pytest.raises(MemoryLimit, match="ask for fewer"):
        backend.kv_store([KVGroup(1, 1, 64)], [2**45], 16, "f32")
    store = backend.kv_store([KVGroup(1, 1, 64)], [2], 16, "f32")
    with pytest.raises(ValueError, match="16 slots, asked to copy 17"):
        store.copy(0, 0, 1, 17)
    with pytest.raises(ValueError, match="pages 0 to 1"):
        store.copy(0, 0, 2, 1)


def test_refuses_another_backends_store() -> None:
    class Other:
        def copy(self, group: int, source: int, target: int, slots: int) -> None: ...

    def build(ops: Ops) -> None: ...

    with pytest.raises(ValueError, match="a KV store and slots of its own"):
        open_backend("reference").program(build).run(Other(), plain_step(1))


def test_weights_outlive_their_bytes() -> None:
    tensor = random_tensor(np.random.default_rng(11), "f32", (3, 4))
    weight = opened("reference").weight(tensor)
    before = weight.values.copy()
    tensor.raw[:] = 0
    assert np.array_equal(weight.values, before)


def test_rope_table_knows_its_dims() -> None:
    assert RopeTable(np.zeros((3, 5), F32), np.zeros((3, 5), F32), True).dims == 10


@pytest.mark.parametrize("name", FORMATS)
def test_formats_agree_with_the_quant_room(name: str) -> None:
    tensor = random_tensor(np.random.default_rng(12), name, (16, 256))
    stored = by_name(name)
    assert (stored.block, stored.block_bytes) == (tensor.format.block, tensor.format.block_bytes)
    assert np.array_equal(replace(tensor, format=stored).floats(), tensor.floats())
