"""What the recorder writes down, and what it refuses: a mistake in a model is named where it is made."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from pagoda.backends.ops import Experts, KVLayer
from pagoda.backends.recorder import Op, Recorder

from .formats import random_tensor
from .opening import opened
from .verbs import rope_table

RNG = np.random.default_rng(0)
MATRIX, DENSE, VECTOR = (
    random_tensor(RNG, name, shape) for name, shape in (("q8_0", (5, 64)), ("f16", (6, 64)), ("f32", (64,)))
)
LAYER = KVLayer(0, 0, 2, 16, 0.25)


def packed() -> list[Any]:
    backend = opened("cpu")
    return [backend.weight(tensor) for tensor in (MATRIX, DENSE, VECTOR)]


@pytest.mark.parametrize(
    ("match", "build"),
    [
        (r"q8_0\[5, 64\] is \(5, 64\), its input 63 wide", lambda o, w: o.linear(o.input("x", 63), w[0])),
        (r"f16\[6, 64\] is \(6, 64\), its input 63 wide", lambda o, w: o.linear(o.input("x", 63), w[:2][::-1])),
        (r"f32\[64\] is \(64,\), its input 64 wide", lambda o, w: o.linear(o.input("x", 64), w[2])),
        (r"f32\[64\] is \(64,\), its input 32 wide", lambda o, w: o.norm(o.input("x", 32), w[2], 1e-5)),
        (r"its input 64 wide in 2 heads", lambda o, w: o.norm(o.input("x", 64), w[2], 1e-5, 2)),
        (r"f32\[64\] is \(64,\), what it is added to 5 wide", lambda o, w: o.linear(o.input("x", 64), w[0], "", w[2])),
        ("silu, gelu_tanh, swiglu_clamped, got 'gelu'", lambda o, _: o.act(o.input("x", 8), o.input("x", 8), "gelu")),
        ("2 of 1 experts of 64 cannot be chosen by 1 scores", lambda o, w: mixture(o, w, 2)),
        ("0 of 1 experts of 64 cannot", lambda o, w: mixture(o, w, 0)),
        (r"experts must be alike: f16\[6, 64\]", lambda o, w: mixture(o, [w[0], w[1]], 1)),
        ("shapes must be equal", lambda o, _: o.act(o.input("x", 8), o.input("y", 9), "silu")),
        ("shapes must be equal", lambda o, _: o.add(o.input("x", 8), o.input("y", 9))),
        ("shapes must be equal", lambda o, _: o.add(o.input("x", 8), o.pick(o.input("y", 8)))),
        ("cannot take keys 16 and values 32 wide", lambda o, _: attend(o, 32, 16, 32)),
        ("cannot take keys 32 and values 16 wide", lambda o, _: attend(o, 32, 32, 16)),
        ("cannot take queries 48 wide", lambda o, _: attend(o, 48, 32, 32)),
        (r"f32\[64\] is \(64,\), there are 4 query heads", lambda o, w: attend(o, 64, 32, 32, sinks=w[2])),
        ("a window is at least 1 key, got 0", lambda o, _: attend(o, 32, 32, 32, window=0)),
        ("positive and finite, got -2", lambda o, _: attend(o, 32, 32, 32, soft_cap=-2.0)),
        ("positive and finite, got inf", lambda o, _: attend(o, 32, 32, 32, soft_cap=float("inf"))),
    ],
)
def test_mistakes_are_named(match: str, build: Callable[[Any, list[Any]], Any]) -> None:
    with pytest.raises(ValueError, match=match):
        build(Recorder("int16"), packed())


def mixture(ops: Any, weights: list[Any], chosen: int) -> None:
    count = 1 if len(weights) > 2 else 2
    experts = Experts(weights[:count], weights[:count], weights[:count])
    ops.moe(ops.input("x", 64), ops.input("scores", count), experts, chosen, "silu", "all")


def attend(ops: Any, q: int, k: int, v: int, **form: Any) -> None:
    ops.attend(ops.input("q", q), ops.input("k", k), ops.input("v", v), replace(LAYER, **form))


@pytest.mark.parametrize(("activations", "bytes_each"), [("int16", 2), ("int8", 1)])
def test_one_pass_for_each_form_of_the_input(activations: str, bytes_each: int) -> None:
    """Quantised weights share one quantised x, f16 ones read x itself; results come in the order asked for."""
    recorder, (matrix, dense, _) = Recorder(activations), packed()
    x = recorder.input("x", 64)
    y = recorder.linear(x, (dense, matrix, dense))
    again = recorder.linear(x, matrix)
    recording = recorder.recording
    assert [i.op for i in recording.instructions] == [Op.INPUT, Op.QUANTIZE, Op.LINEAR, Op.LINEAR, Op.LINEAR]
    assert [recording.shapes[v].width for v in (*y, again)] == [6, 5, 6, 5]
    quantized = recording.instructions[1].writes[0]
    assert recording.shapes[quantized].integer == bytes_each
    assert [i.reads for i in recording.instructions[2:]] == [(quantized,), (x,), (quantized,)]
    assert recording.matrices == [matrix, dense], "a weight is numbered once"


def test_f32_activations_quantise_nothing() -> None:
    recorder, (matrix, dense, _) = Recorder("f32"), packed()
    recorder.linear(recorder.input("x", 64), (matrix, dense))
    assert [i.op for i in recorder.recording.instructions] == [Op.INPUT, Op.LINEAR]


def test_rows_of_the_step_and_sampled_rows() -> None:
    recorder, (matrix, _, vector) = Recorder("int16"), packed()
    x = recorder.input("x", 64)
    picked = recorder.norm(recorder.pick(x), vector, 1e-5)
    y = recorder.linear(picked, matrix)
    z = recorder.input("z", 3, "S")
    shapes = recorder.recording.shapes
    assert [shapes[v].rows for v in (x, picked, y, z)] == ["R", "S", "S", "S"]


def test_a_table_is_numbered_once() -> None:
    recorder, table, other = Recorder("int16"), *(rope_table(4, 16, adjacent) for adjacent in (True, False))
    q, k = recorder.input("q", 32), recorder.input("k", 16)
    for used in (table, other, table):
        q, k = recorder.rope(q, k, 16, used)
    assert recorder.recording.tables == [table, other]
    assert [i.constants for i in recorder.recording.instructions[2:]] == [(0,), (1,), (0,)]
