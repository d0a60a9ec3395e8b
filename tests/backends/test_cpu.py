"""The native backend's own: options, what it refuses, and letting go of it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import replace

import numpy as np
import pytest

from pagoda.backends import _native
from pagoda.backends.cpu import WEIGHT_FORMATS, CpuBackend, isas
from pagoda.backends.ops import KVGroup, Ops, StoredTensor
from pagoda.backends.reference import ReferenceBackend
from pagoda.errors import InvalidConfig, UnsupportedModel

from .cases import plain_step
from .formats import FORMATS, random_tensor

LET_GO = """
import numpy as np
from pagoda.backends.cpu import CpuBackend
from pagoda.backends.ops import Step
rows = np.arange(2, dtype=np.int32)
step = Step(rows, rows, rows * 0, (), rows[:0], {"R.x": np.zeros((2, 4), np.float32)})
for i in range(1500):
    backend = CpuBackend(threads=1 + i % 3)
    program = backend.program(lambda ops: ops.output("R.y", ops.input("R.x", 4)))
    kv = backend.kv_store((), (), 16, "f32")
    program.submit(kv, step)
    program.run(kv, step)
    del backend, program, kv
"""


def test_letting_go_never_hangs() -> None:
    """In a process of its own, as a hang may hold the GIL: a worker drops a step's objects while the pool ends."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", LET_GO], check=True, timeout=100, env=environment)


def test_a_clocked_program_says_how_long_each_stage_took() -> None:
    def build(ops: Ops) -> None:
        x = ops.input("R.x", 64)
        ops.output("R.y", ops.add(ops.add(x, x), x))

    step = plain_step(500, inputs={"R.x": np.ones((500, 64), np.float32)})
    for threads in (1, 3):
        backend = CpuBackend(threads=threads)
        program, kv = backend.program(build), backend.kv_store((), (), 16, "f32")
        pending = program.submit(kv, step)
        pending.wait()
        assert pending.times() == []
        program.clocked = True
        pending = program.submit(kv, step)
        seconds = pending.wait().seconds
        names, times = zip(*pending.times(), strict=True)
        assert names == ("input", "add", "add", "output", "draw")
        assert all(t > 0 for t in times[:3])
        assert times[3:] == (0, 0), "nothing was handed out, nothing drawn"
        assert sum(times) <= threads * seconds


def test_the_isa_is_the_argument_or_the_environment_or_the_best(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PAGODA_ISA", raising=False)
    assert isas()[-1] == "scalar"
    assert CpuBackend(threads=1).isa == isas()[0]
    monkeypatch.setenv("PAGODA_ISA", "scalar")
    assert CpuBackend(threads=1).isa == "scalar"
    assert CpuBackend(threads=1, isa=isas()[0]).isa == isas()[0]
    monkeypatch.setenv("PAGODA_ISA", "")
    assert CpuBackend(threads=1).isa == isas()[0]


def test_an_instruction_set_that_fails_its_self_test_is_not_used(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv("PAGODA_ISA", raising=False)
    assert [_native.self_test(isa) for isa in isas()] == [""] * len(isas())
    broken = isas()[:-1]
    monkeypatch.setattr("pagoda.backends.cpu.fault", lambda isa: "attend, KV in f16" if isa in broken else "")
    assert CpuBackend(threads=1).isa == "scalar"
    assert [record.levelname for record in caplog.records] == ["WARNING"] * len(broken)
    for isa, record in zip(broken, caplog.records, strict=True):
        assert f"{isa} is not used" in record.getMessage()
        assert "(attend, KV in f16)" in record.getMessage()
        with pytest.raises(InvalidConfig, match=rf"{isa} computes wrongly on this machine \(attend, KV in f16\)"):
            CpuBackend(threads=1, isa=isa)


def test_the_self_test_is_quick() -> None:
    """Of processor time, the best of a few: a start runs it once."""
    for isa in isas():
        taken = []
        for _ in range(5):
            began = time.process_time()
            _native.self_test(isa)
            taken.append(time.process_time() - began)
        assert min(taken) < 0.020, isa


def test_wrong_options_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PAGODA_ISA", "mmx")
    with pytest.raises(InvalidConfig, match=r"instruction set must be one of .*'scalar'.*got 'mmx'"):
        CpuBackend()
    monkeypatch.delenv("PAGODA_ISA")
    with pytest.raises(InvalidConfig, match="got 'sse'"):
        CpuBackend(isa="sse")
    with pytest.raises(InvalidConfig, match=r"activations must be one of .*got 'int4'"):
        CpuBackend(activations="int4")
    for threads in (0, -1, 1025):
        with pytest.raises(InvalidConfig, match=f"threads must be 1 to 1024, got {threads}"):
            CpuBackend(threads=threads)
    with pytest.raises(InvalidConfig, match=r"kv_format must be one of .*got 'int3'"):
        CpuBackend(threads=1).kv_store((KVGroup(1, 1, 16),), (1,), 16, "int3")


def test_a_weight_format_without_kernels_is_named() -> None:
    unknown = replace(FORMATS["q8_0"], name="q9_0")
    tensor = StoredTensor("blk.0.ffn_up", (3, 64), unknown, np.zeros(3 * 2 * unknown.block_bytes, np.uint8))
    with pytest.raises(UnsupportedModel, match=rf"'blk.0.ffn_up' is in q9_0.*they read {', '.join(WEIGHT_FORMATS)}"):
        CpuBackend(threads=1).weight(tensor)


def test_a_matrix_of_another_size_is_refused() -> None:
    tensor = random_tensor(np.random.default_rng(0), "q4_0", (3, 64))
    with pytest.raises(ValueError, match="another size in bytes"):
        CpuBackend(threads=1).weight(replace(tensor, shape=(3, 96)))


def test_anothers_store_and_slots_are_refused() -> None:
    backend, other = CpuBackend(threads=1), ReferenceBackend()
    program = backend.program(lambda ops: ops.output("R.x", ops.input("R.x", 4)))
    step = plain_step(1, inputs={"R.x": np.zeros((1, 4), np.float32)})
    with pytest.raises(TypeError, match="KV store and slots of its own"):
        program.run(other.kv_store((), (), 16, "f32"), step)
    with pytest.raises(TypeError, match="KV store and slots of its own"):
        program.submit(backend.kv_store((), (), 16, "f32"), step, other.slots())
