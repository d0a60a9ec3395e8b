"""The native CPU backend: records a model's segments once and runs them without Python.

Instruction set and threads change no bit of any result (docs/arithmetic.md). `PAGODA_ISA` chooses the instruction set
for tests; otherwise it is the best that this machine has.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np

from pagoda.backends import _native
from pagoda.backends.machine import cores
from pagoda.backends.ops import (
    Bytes,
    Draw,
    Floats,
    KVGroup,
    KVStore,
    Ops,
    RopeTable,
    Slots,
    Step,
    StepOutput,
    StoredTensor,
    Unit,
)
from pagoda.backends.passes import FUSIONS, share_memory
from pagoda.backends.recorder import NONE, Instruction, NativeWeight, Op, Recorder, Recording, Shape
from pagoda.config import ACTIVATIONS, KV_FORMATS
from pagoda.errors import InvalidConfig, MemoryLimit, ModelFileError, UnsupportedModel

_log = logging.getLogger(__name__)

ARITHMETIC = 1
"""Version of docs/arithmetic.md: part of the fingerprint; a change of any result's bits changes it."""
LAYOUT = 1
"""Version of how a page's bytes lie (native/src/kernels.h, KVPages): pages on disk of another one are not read."""
WEIGHT_FORMATS = (
    "f32", "f16", "bf16", "q4_0", "q4_1", "q5_0", "q5_1", "q8_0",
    "q2_k", "q3_k", "q4_k", "q5_k", "q6_k", "iq4_nl", "iq4_xs", "mxfp4",
    "q4_z32", "q4_z128", "q8_z32", "q8_z128", "f8_e4m3", "f8_e5m2",
)  # fmt: skip
DENSE = ("f32", "f16", "bf16", "f8_e4m3", "f8_e5m2")
"""Floats: they read activations as they are."""
LOGITS = "logits"
"""The output that draws sample."""


def isas() -> tuple[str, ...]:
    """Instruction sets that this machine has and Pagoda was built for, best first; the last is `scalar`."""
    return tuple(_native.isas())


@cache
def fault(isa: str) -> str:
    """What of an instruction set does not give the bits of the scalar build on this machine; empty: nothing.

    Found once, by running a few kernels on fixed numbers.
    """
    return _native.self_test(isa)


def chosen_isa(name: str | None = None) -> str:
    """The instruction set to use: `name`, else `PAGODA_ISA`, else the best one that passes its self-test.

    Raises:
        InvalidConfig: this machine does not have the one that was named, or it fails.
    """
    if named := name or os.environ.get("PAGODA_ISA"):
        if named not in isas():
            raise InvalidConfig(f"instruction set must be one of {isas()} on this machine, got {named!r}")
        if what := fault(named):
            raise InvalidConfig(f"instruction set {named} computes wrongly on this machine ({what}): take another")
        return named
    for isa in isas():
        if not (what := fault(isa)):
            return isa
        _log.warning(
            "instruction set %s is not used: its self-test differs from the scalar build (%s). "
            "Please report it with the output of `pagoda doctor`",
            isa,
            what,
        )
    raise AssertionError("the scalar build does not equal itself")


def rope_table(frequencies: Sequence[float], positions: int, *, adjacent: bool, magnitude: float = 1.0) -> RopeTable:
    """Angles position * frequency, one frequency for each pair; computed the same on every machine.

    Cosine and sine are rounded to f32, then multiplied by `magnitude` in f32.
    """
    cos, sin = _native.rope_angles(np.array(frequencies, np.float64), positions)
    return RopeTable(cos * np.float32(magnitude), sin * np.float32(magnitude), adjacent)


def check_format(name: str, form: str) -> None:
    """Refuse a matrix in a format that has no kernels.

    Raises:
        UnsupportedModel: this one.
    """
    if form not in WEIGHT_FORMATS:
        raise UnsupportedModel(
            f"tensor {name!r} is in {form}, which the native kernels do not read; they read {', '.join(WEIGHT_FORMATS)}"
        )


def prepare(recording: Recording, *, fuse: bool) -> tuple[list[Shape], int]:
    """Fuse a recording and place its values in buffers, in place; the buffers, and that of the logits (or NONE)."""
    logits = next((i.reads[0] for i in recording.instructions if i.op is Op.OUTPUT and i.text == LOGITS), NONE)
    if fuse:
        for fusion in FUSIONS:
            fusion(recording)
    at = next((n for n, i in enumerate(recording.instructions) if logits in i.reads and i.op is Op.OUTPUT), NONE)
    buffers = share_memory(recording, keep=logits)
    return buffers, recording.instructions[at].reads[0] if at != NONE else NONE


def _source(tensor: StoredTensor) -> Bytes | tuple[int, int]:
    """A matrix's bytes, or their place in a file, as the native module wants it."""
    stored = tensor.stored
    return stored if isinstance(stored, np.ndarray) else (stored.descriptor, stored.offset)


def _vectors(tensors: Sequence[StoredTensor]) -> list[Floats]:
    """Of all vectors, in one visit to the file."""
    places = [t.stored for t in tensors if not isinstance(t.stored, np.ndarray)]
    read = iter(_native.read_files([(p.descriptor, p.offset, p.size) for p in places]))
    whole = [t if isinstance(t.stored, np.ndarray) else replace(t, stored=next(read)) for t in tensors]
    return [np.array(t.floats(), np.float32) for t in whole]


class CpuPending:
    """A step in the native queue."""

    def __init__(self, job: Any, instructions: Sequence[Instruction]) -> None:
        self._job = job
        self._instructions = instructions

    def wait(self) -> StepOutput:
        """Until it is done, without the GIL."""
        self._job.wait()
        counts, tokens, logprobs, top = self._job.drawn()
        return StepOutput(self._job.outputs(), counts, tokens, logprobs, top, self._job.seconds)

    def times(self) -> list[tuple[str, float]]:
        """Each stage's name and seconds, all threads together, once done; empty unless the program is `clocked`."""
        names = [*(i.op.name.lower() for i in self._instructions), "draw"]
        times = self._job.times
        return list(zip(names, times, strict=True)) if times else []


class CpuTransfer:
    """Pages in the native queue."""

    def __init__(self, job: Any) -> None:
        self._job = job

    def wait(self) -> tuple[list[Bytes], float]:
        """Until it is done, without the GIL."""
        self._job.wait()
        return self._job.take(), self._job.seconds


class CpuProgram:
    """A recording, fused and placed in memory."""

    clocked = False
    """Whether steps note how long each of their stages takes."""

    def __init__(self, pool: Any, isa: str, recording: Recording, *, fuse: bool) -> None:
        buffers, logits = prepare(recording, fuse=fuse)
        self.recording = recording
        self._pool = pool
        self._program = _native.Program(
            isa,
            [
                (int(i.op), list(i.reads), list(i.writes), list(i.constants), list(i.whole), list(i.real), i.text)
                for i in recording.instructions
            ],
            [(b.rows == "S", b.integer, b.width, b.chosen, b.experts) for b in buffers],
            [w.packed for w in recording.matrices],
            [w.vector for w in recording.vectors if w.vector is not None],
            [(t.cos.reshape(-1), t.sin.reshape(-1), t.dims, t.adjacent) for t in recording.tables],
            logits,
        )

    def submit(
        self, kv: KVStore, step: Step, slots: Slots | None = None, draws: Sequence[Draw] = (), outputs: bool = False
    ) -> CpuPending:
        """Queue one step; returns at once."""
        if not isinstance(kv, _native.KVStore) or not isinstance(slots, _native.Slots | None):
            raise TypeError("the native backend needs a KV store and slots of its own")
        job = _native.submit(
            self._pool,
            self._program,
            kv,
            slots,
            step.ids,
            step.positions,
            step.sequences,
            step.sampled,
            step.slots,
            step.guesses,
            step.parents,
            list(step.tables),
            step.inputs,
            [
                (
                    d.slot, d.seed, d.choice, d.position, d.temperature, d.top_p, d.min_p, d.repetition, d.frequency,
                    d.presence, d.top_k, d.logprobs, d.drafts,
                )
                for d in draws
            ],
            list(step.copies),
            list(step.starts),
            outputs,
            self.clocked,
        )  # fmt: skip
        return CpuPending(job, self.recording.instructions)

    def run(self, kv: KVStore, step: Step) -> dict[str, Floats]:
        """Run one step and wait."""
        return self.submit(kv, step, outputs=True).wait().outputs


class CpuBackend:
    """Opens the native backend.

    Args:
        activations: `int16`, `int8` or `f32`: what linear layers with quantised weights read.
        threads: worker threads; None is the cores this process may use.
        isa: one of `isas()`; None is `PAGODA_ISA` or the best.
        fuse: whether to fuse instructions (for tests: it changes no bit).
    """

    name = "cpu"
    layout = f"cpu-{LAYOUT}"

    def __init__(
        self, activations: str = "int16", threads: int | None = None, isa: str | None = None, fuse: bool = True
    ) -> None:
        if activations not in ACTIVATIONS:
            raise InvalidConfig(f"activations must be one of {ACTIVATIONS}, got {activations!r}")
        if threads is not None and not 1 <= threads <= 1024:
            raise InvalidConfig(f"threads must be 1 to 1024, got {threads}")
        self.activations = activations
        self.isa = chosen_isa(isa)
        self.threads = threads or cores()
        self.arithmetic = ARITHMETIC
        self._fuse = fuse
        self._pool = _native.Pool(self.threads)

    def weight(self, tensor: StoredTensor) -> NativeWeight:
        """Pack a stored tensor."""
        return self.weights([tensor])[0]

    def weights(self, tensors: Sequence[StoredTensor]) -> list[NativeWeight]:
        """Pack several, all threads together and without the GIL; none of their bytes are needed afterwards.

        What a tensor of an open file needs is read as it is packed, so that the file is never in memory as a whole.
        """
        matrices = [t for t in tensors if len(t.shape) > 1]
        for t in matrices:
            check_format(t.name, t.format.name)
        try:
            packed = iter(
                _native.pack(self._pool, [(t.format.name, t.shape[0], t.shape[1], _source(t)) for t in matrices])
            )
            vectors = iter(_vectors([t for t in tensors if len(t.shape) == 1]))
        except MemoryError as error:
            size = sum(t.stored.nbytes if isinstance(t.stored, np.ndarray) else t.stored.size for t in matrices)
            raise MemoryLimit(f"no memory to pack {len(matrices)} tensors of {size} bytes") from error
        except _native.ReadFailed as error:
            for t in tensors:
                _ = t.raw  # says which tensor it is, and what to do
            raise ModelFileError(f"one of {len(tensors)} tensors cannot be read: {error}") from error
        return [
            NativeWeight(t.name, t.shape, t.format.name not in DENSE, packed=next(packed), order=t.order)
            if len(t.shape) > 1
            else NativeWeight(t.name, t.shape, False, vector=next(vectors))
            for t in tensors
        ]

    def kv_store(self, groups: Sequence[KVGroup], pages: Sequence[int], page_size: int, kv_format: str) -> KVStore:
        """Commit memory for `pages[g]` pages of each group.

        Raises:
            MemoryLimit: it cannot be had.
        """
        if kv_format not in KV_FORMATS:
            raise InvalidConfig(f"kv_format must be one of {KV_FORMATS}, got {kv_format!r}")
        shapes = [(g.layers, g.heads, g.head_dim, n) for g, n in zip(groups, pages, strict=True)]
        try:
            store: KVStore = _native.KVStore(shapes, page_size, kv_format, self._pool)
        except MemoryError as error:
            raise MemoryLimit(f"no memory for {tuple(pages)} KV pages; ask for fewer") from error
        return store

    def transfer(self, kv: KVStore, saves: Sequence[Unit], loads: Sequence[tuple[Unit, Bytes]]) -> CpuTransfer:
        """Copy pages out, then others in, behind the steps submitted before."""
        if not isinstance(kv, _native.KVStore):
            raise TypeError("the native backend needs a KV store of its own")
        return CpuTransfer(_native.transfer(self._pool, kv, list(saves), list(loads)))

    def slots(self) -> Slots:
        """Room for sequences' tokens."""
        return _native.Slots()

    def program(self, build: Callable[[Ops], None]) -> CpuProgram:
        """Record a function that calls verbs."""
        recorder = Recorder(self.activations)
        build(recorder)
        return CpuProgram(self._pool, self.isa, recorder.recording, fuse=self._fuse)
