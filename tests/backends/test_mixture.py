"""Mixtures: rows are multiplied by their experts and no others; experts that no row chose are not even read."""

from __future__ import annotations

import ctypes
import mmap
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pagoda.backends.cpu import CpuBackend
from pagoda.backends.footprint import Mixture, Reads
from pagoda.backends.ops import Experts, Floats, StoredTensor
from pagoda.config import ACTIVATIONS

from .cases import Case, plain_step, run
from .compare import assert_same
from .formats import random_tensor
from .verbs import normal

WIDTH, HIDDEN, EXPERTS = 256, 256, 5


def tensors(name: str, width: int = WIDTH, hidden: int = HIDDEN) -> list[StoredTensor]:
    """Gates, ups, downs."""
    rng = np.random.default_rng(7)
    shapes = [(hidden, width)] * (2 * EXPERTS) + [(width, hidden)] * EXPERTS
    return [random_tensor(rng, name, shape, 0.3) for shape in shapes]


def moe(ops: Any, w: list[Any], chosen: int, width: int = WIDTH) -> None:
    experts = Experts(w[:EXPERTS], w[EXPERTS : 2 * EXPERTS], w[2 * EXPERTS :])
    ops.output(
        "R.y", ops.moe(ops.input("R.x", width), ops.input("R.scores", EXPERTS), experts, chosen, "silu", "chosen")
    )


def dense(ops: Any, w: list[Any]) -> None:
    """Every row through every expert."""
    x = ops.input("R.x", WIDTH)
    for e in range(EXPERTS):
        h = ops.act(*ops.linear(x, (w[e], w[EXPERTS + e])), "silu")
        ops.output(f"R.{e}", ops.linear(h, w[2 * EXPERTS + e]))


def scores_for(best: np.ndarray[Any, np.dtype[np.int64]]) -> Floats:
    """Scores by which row i chooses expert best[i]."""
    return np.eye(EXPERTS, dtype=np.float32)[best]


@pytest.mark.parametrize("name", ["q4_0", "q4_k", "f16"])
@pytest.mark.parametrize("rows", [1, 8, 50])
def test_one_expert_gives_the_bits_of_its_own_products(name: str, rows: int) -> None:
    """Whatever rows are brought together, some experts having none, and one, most rows."""
    rng = np.random.default_rng(rows)
    best = np.where(rng.random(rows) < 0.6, 3, rng.integers(0, EXPERTS - 1, rows))
    inputs = {"R.x": normal(rng, rows, WIDTH), "R.scores": scores_for(best)}
    case = Case("moe", lambda o, w: moe(o, w, 1), (plain_step(rows, inputs=inputs),), tuple(tensors(name)))
    for activations in ACTIVATIONS:
        backend = CpuBackend(activations, threads=2)
        (each,) = run(backend, Case("all", dense, case.steps, case.tensors))
        want = np.stack([each[f"R.{e}"] for e in range(EXPERTS)])[best, np.arange(rows)]
        assert_same(run(backend, case), [{"R.y": want}], activations)


def protected_run(chosen: int, protected: list[int]) -> None:
    """A step whose rows choose experts from 0 to `chosen` - 1, while others' memory may not be read."""
    width, hidden = 512, 256
    backend = CpuBackend(threads=2)
    weights = [backend.weight(tensor) for tensor in tensors("q8_0", width, hidden)]
    program = backend.program(lambda ops: moe(ops, weights, 1, width))
    kv = backend.kv_store((), [], 16, "f16")
    rng = np.random.default_rng(0)
    x, scores = normal(rng, 40, width), scores_for(np.arange(40) % chosen)
    step = plain_step(40, inputs={"R.x": x, "R.scores": scores})
    before = program.run(kv, step)["R.y"]
    protect = ctypes.CDLL(None, use_errno=True).mprotect
    for e in protected:
        for w in (weights[e], weights[EXPERTS + e], weights[2 * EXPERTS + e]):
            first = -(-w.packed.address // mmap.PAGESIZE) * mmap.PAGESIZE
            last = (w.packed.address + w.packed.bytes) // mmap.PAGESIZE * mmap.PAGESIZE
            assert last - first > 0.9 * w.packed.bytes
            assert protect(ctypes.c_void_p(first), ctypes.c_size_t(last - first), 0) == 0
    print("protected", flush=True)
    assert np.array_equal(program.run(kv, step)["R.y"], before)
    print("same", flush=True)


@pytest.mark.skipif(sys.platform != "linux", reason="mprotect")
@pytest.mark.parametrize(("chosen", "protected", "ends"), [(3, [3, 4], True), (3, [2], False), (1, [1, 2, 3, 4], True)])
def test_experts_that_no_row_chose_are_not_read(chosen: int, protected: list[int], ends: bool) -> None:
    """In a process of its own: a read of protected memory ends it, which the second case is the proof of."""
    code = f"from tests.backends.test_mixture import protected_run; protected_run({chosen}, {protected})"
    root = Path(__file__).parents[2]
    path = [str(root), str(root / "tests"), *sys.path]
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path[:0] = {path!r}; {code}"], capture_output=True, text=True
    )
    assert done.stdout.split() == (["protected", "same"] if ends else ["protected"]), done.stderr
    assert done.returncode == (0 if ends else -signal.SIGSEGV)


def test_active_experts_of_a_step() -> None:
    """One row reads k experts; more rows, as many as independent choices meet on average."""
    mixture = Mixture(64, 8, 640)
    assert mixture.active(1) == 8
    rng = np.random.default_rng(0)
    for rows in (2, 8, 32):
        chosen = [np.concatenate([rng.permutation(64)[:8] for _ in range(rows)]) for _ in range(400)]
        assert mixture.active(rows) == pytest.approx(np.mean([np.unique(c).size for c in chosen]), rel=0.02)
    reads = Reads(1000, 10, (mixture, Mixture(4, 4, 100)))
    assert reads.experts == 740
    assert reads.step(1) == 1000 + 10 + 80 + 100
    assert reads.step(10**6) == 1000 + 10**7 + 740
