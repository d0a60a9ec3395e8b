"""Passes over a recording change no bit, do what they are for, and never let two living values share memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from pagoda.backends import cpu
from pagoda.backends.cpu import CpuBackend
from pagoda.backends.ops import KVLayer
from pagoda.backends.passes import FUSIONS, fuse_quantize, fuse_residual, fuse_rope_store, share_memory
from pagoda.backends.recorder import NONE, Instruction, Op, Recorder, Recording, Shape

from .cases import run
from .compare import assert_close, assert_same
from .formats import random_tensor
from .opening import opened
from .programs import program
from .verbs import rope_table

SEEDS = range(40)


def record(build: Callable[[Any, list[Any]], None], tensors: Any = (), activations: str = "int16") -> Recording:
    backend = opened("cpu", activations=activations)
    weights = [backend.weight(tensor) for tensor in tensors]
    recorder = Recorder(activations)
    build(recorder, weights)
    return recorder.recording


def ops_of(recording: Recording) -> list[Op]:
    return [i.op for i in recording.instructions]


@pytest.mark.parametrize("seed", SEEDS)
def test_random_programs_fused_and_not(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """All fusions, and each alone, give the unfused program's bits; those lie within tolerance of the reference."""
    case = program(seed)
    for activations in ("int16", "int8", "f32"):
        monkeypatch.setattr(cpu, "FUSIONS", FUSIONS)
        plain = run(CpuBackend(activations, threads=1, fuse=False), case)
        assert_same(run(CpuBackend(activations, threads=2), case), plain, f"{activations}, all fusions")
        for fusion in FUSIONS:
            monkeypatch.setattr(cpu, "FUSIONS", (fusion,))
            assert_same(run(CpuBackend(activations, threads=1), case), plain, f"{activations}, {fusion.__name__}")
        if activations == "f32":
            assert_close(case, plain, run(opened("reference", activations="f32"), case))


def test_every_fusion_is_met_by_the_random_programs() -> None:
    """Else their equality proves nothing: most programs are changed by some fusion, and each fusion changes many."""
    changed = {fusion: 0 for fusion in FUSIONS}
    for seed in SEEDS:
        case = program(seed)
        for fusion in FUSIONS:
            recording = record(case.build, case.tensors)
            before = list(recording.instructions)
            fusion(recording)
            changed[fusion] += recording.instructions != before
    assert min(changed.values()) >= 5, changed


def played(recording: Recording, buffers: list[Shape], renumbered: list[Instruction], keep: int) -> dict[int, int]:
    """Run the original and the renumbered list side by side, noting which value each buffer holds; the last notes."""
    holds: dict[int, int] = {}
    for old, new in zip(recording.instructions, renumbered, strict=True):
        assert (old.op, old.constants, old.whole, old.real, old.text) == (
            new.op, new.constants, new.whole, new.real, new.text,
        )  # fmt: skip
        for value, buffer in zip(old.reads, new.reads, strict=True):
            assert (value == NONE) == (buffer == NONE)
            assert value == NONE or holds[buffer] == value, f"{new} reads buffer {buffer}, which holds {holds[buffer]}"
        made = [(v, b) for v, b in zip(old.writes, new.writes, strict=True) if v != NONE]
        assert len({b for _, b in made}) == len(made), f"{new} writes a buffer twice"
        for value, buffer in made:
            # A tile may write while another still reads: only an instruction that works in place may share.
            assert value in old.reads or buffer not in new.reads, f"{new} overwrites what it reads"
            assert buffers[buffer] == recording.shapes[value]
            holds[buffer] = value
    return holds


@pytest.mark.parametrize("fuse", [False, True])
@pytest.mark.parametrize("seed", SEEDS)
def test_living_values_never_share_memory(seed: int, fuse: bool) -> None:
    case = program(seed)
    for keep_some in (False, True):
        recording = record(case.build, case.tensors)
        for fusion in FUSIONS if fuse else ():
            fusion(recording)
        original = Recording(list(recording.instructions), list(recording.shapes))
        logits = next(i.reads[0] for i in recording.instructions if i.text == "logits")
        keep = logits if keep_some else NONE
        buffers = share_memory(recording, keep)
        assert recording.shapes == buffers
        holds = played(original, buffers, recording.instructions, keep)
        if keep_some:
            assert logits in holds.values()
        assert len(buffers) < len(original.shapes) / 2


def test_a_kept_value_outlives_its_last_reader() -> None:
    def build(ops: Any, w: list[Any]) -> None:
        x = ops.input("x", 8)
        ops.output("logits", x)
        y = ops.add(ops.input("y", 8), ops.input("y", 8))
        ops.output("y", y)

    kept, dropped = record(build), record(build)
    assert share_memory(kept, keep=0) != share_memory(dropped)


NORMED = [random_tensor(np.random.default_rng(0), "f32", (32,))]
MATRICES = [random_tensor(np.random.default_rng(1), name, (32, 32)) for name in ("q4_0", "f16")]


@pytest.mark.parametrize("make", ["norm", "act"])
def test_quantize_joins_what_it_follows(make: str) -> None:
    def build(ops: Any, w: list[Any]) -> None:
        x = ops.input("x", 32)
        y = ops.norm(x, w[0], 1e-5) if make == "norm" else ops.act(x, x, "silu")
        ops.output("y", ops.linear(y, w[1]))

    def build_both(ops: Any, w: list[Any]) -> None:
        x = ops.input("x", 32)
        y = ops.norm(x, w[0], 1e-5) if make == "norm" else ops.act(x, x, "silu")
        ops.output("y", ops.add(*ops.linear(y, w[1:])))

    op = Op.NORM if make == "norm" else Op.ACT
    recording = record(build, NORMED + MATRICES)
    assert ops_of(recording) == [Op.INPUT, op, Op.QUANTIZE, Op.LINEAR, Op.OUTPUT]
    fuse_quantize(recording)
    assert ops_of(recording) == [Op.INPUT, op, Op.LINEAR, Op.OUTPUT]
    assert recording.instructions[1].writes[-2] == NONE, "nobody reads the row itself"
    recording = record(build_both, NORMED + MATRICES)
    fuse_quantize(recording)
    assert ops_of(recording) == [Op.INPUT, op, Op.LINEAR, Op.LINEAR, Op.ADD, Op.OUTPUT]
    assert recording.instructions[1].writes[-2] != NONE, "the f16 weight reads the row itself"


def test_quantize_of_what_nobody_made_stays() -> None:
    recording = record(lambda ops, w: ops.output("y", ops.linear(ops.input("x", 32), w[0])), MATRICES)
    before = list(recording.instructions)
    fuse_quantize(recording)
    assert recording.instructions == before


def test_the_sum_and_its_norm_are_joined_only_side_by_side() -> None:
    def build(ops: Any, w: list[Any]) -> None:
        z = ops.add(ops.input("x", 32), ops.input("y", 32))
        ops.output("z", ops.add(ops.norm(z, w[0], 1e-5), z))

    def build_apart(ops: Any, w: list[Any]) -> None:
        z = ops.add(ops.input("x", 32), ops.input("y", 32))
        ops.output("z", z)
        ops.output("n", ops.norm(z, w[0], 1e-5))

    recording = record(build, NORMED)
    fuse_residual(recording)
    assert ops_of(recording) == [Op.INPUT, Op.INPUT, Op.NORM, Op.ADD, Op.OUTPUT]
    assert recording.instructions[2].reads == (0, 1)
    assert recording.instructions[2].writes[0] == 2, "the sum is still there for who reads it"
    recording = record(build_apart, NORMED)
    fuse_residual(recording)
    assert ops_of(recording) == [Op.INPUT, Op.INPUT, Op.ADD, Op.OUTPUT, Op.NORM, Op.OUTPUT]


@pytest.mark.parametrize("reuse", ["no", "turned keys", "unturned keys", "keys as values"])
def test_keys_are_turned_in_place_only_if_nobody_else_reads_them(reuse: str) -> None:
    table = rope_table(8, 16, adjacent=False)

    def build(ops: Any, w: list[Any]) -> None:
        k, v = ops.input("k", 16), ops.input("v", 16)
        q, turned = ops.rope(ops.input("q", 16), k, 16, table)
        ops.output("y", ops.attend(q, turned, k if reuse == "keys as values" else v, KVLayer(0, 0, 1, 16, 1.0)))
        if "turned" in reuse:
            ops.output("k", turned if reuse == "turned keys" else k)

    recording = record(build)
    fuse_rope_store(recording)
    assert (Op.ROPE_STORE in ops_of(recording)) == (reuse == "no")
    assert (Op.ROPE in ops_of(recording)) == (reuse != "no")
