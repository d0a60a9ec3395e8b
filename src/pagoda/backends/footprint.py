"""What a program of the native backend will take of memory and read for each token, found without any of its weights.

Records the model as the backend itself does, over weights that have only a shape, and counts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from pagoda.backends import _native
from pagoda.backends.cpu import DENSE, check_format, prepare
from pagoda.backends.ops import Ints, Ops
from pagoda.backends.recorder import NativeWeight, Op, Recorder, Recording, Shape

BLOCK = 32
"""Numbers of activations that share a scale, as `kBlock` in native/src/kernels.h."""
BLOCK_EXTRA = 16
"""Bytes beside a block's numbers: its scale, one sum in f32, and two of integers."""
PANEL = 8
"""Rows that are summed together, as `kPanel` in native/src/kernels.h: an expert's rows begin at a multiple of it."""


@dataclass(frozen=True, slots=True)
class Mixture:
    """All layers' experts that are chosen alike."""

    experts: int
    chosen: int
    """For each row, in each layer."""
    bytes: int
    """Of all experts in all layers."""

    def active(self, rows: int) -> float:
        """Experts of a layer that a step of so many rows reads, if each row chooses by itself and likes all alike:
        E (1 - (1 - k / E)^rows), which is k for one row."""
        return float(self.experts * (1 - (1 - self.chosen / self.experts) ** rows))


@dataclass(frozen=True, slots=True)
class Reads:
    """Bytes of weights that a step reads."""

    shared: int
    """Whatever its rows: every matrix it multiplies by, experts apart."""
    embedding: int
    """For each row: its row of the embedding."""
    mixtures: tuple[Mixture, ...] = ()

    def step(self, rows: int) -> int:
        """Of a step of so many rows: of experts, those that are active."""
        active = sum(m.bytes * m.active(rows) / m.experts for m in self.mixtures)
        return self.shared + rows * self.embedding + round(active)

    @property
    def experts(self) -> int:
        """All experts, active or not."""
        return sum(m.bytes for m in self.mixtures)


@dataclass(frozen=True, slots=True)
class Footprint:
    """Bytes."""

    reads: Reads
    row: int
    """Of step memory, for each row of a step."""
    fixed: int
    """Of step memory, for all rows together: between the rows of one expert and those of the next."""
    sampled_row: int
    """Of step memory, for each row whose logits are wanted."""


def packed_bytes(name: str, form: str, shape: tuple[int, ...]) -> int:
    """Bytes of a tensor once it is packed: a matrix in tiles of 16 rows, a vector as two f32 copies.

    Raises:
        UnsupportedModel: the native kernels do not read this format.
    """
    if len(shape) == 1:
        return 2 * 4 * shape[0]
    check_format(name, form)
    return _native.packed_bytes(form, *shape)


def stand_in(name: str, form: str, shape: tuple[int, ...], order: Ints | None = None) -> NativeWeight:
    """A weight with nothing in it, to record with."""
    return NativeWeight(name, shape, len(shape) > 1 and form not in DENSE, order=order)


def footprint(build: Callable[[Ops], None], formats: Mapping[str, str], activations: str) -> Footprint:
    """Count for a function that calls verbs with `stand_in` weights; `formats` are those of its matrices, by name."""
    recorder = Recorder(activations)
    build(recorder)
    recording = recorder.recording
    buffers, _ = prepare(recording, fuse=True)
    rows, fixed = {"R": 0, "S": 0}, 0
    for b in buffers:
        each = b.width * b.integer + b.width // BLOCK * BLOCK_EXTRA if b.integer else b.width * 4
        rows[b.rows] += each * (b.chosen or 1)
        fixed += each * b.experts * (PANEL - 1)
    return Footprint(_reads(recording, buffers, formats), rows["R"], fixed, rows["S"])


def _reads(recording: Recording, buffers: Sequence[Shape], formats: Mapping[str, str]) -> Reads:
    shared = embedding = 0
    mixtures = Counter[tuple[int, int]]()
    for i in recording.instructions:
        for w in (recording.matrices[c] for c in i.constants if i.op in (Op.LINEAR, Op.EMBED, Op.EXPERTS)):
            whole = _native.packed_bytes(formats[w.name], *w.shape)
            if i.op is Op.EXPERTS:
                mixtures[i.whole[0], buffers[i.reads[0]].chosen] += whole
            elif i.op is Op.LINEAR:
                shared += whole
            else:
                embedding += whole // w.shape[0]
    return Reads(shared, embedding, tuple(Mixture(e, k, size) for (e, k), size in mixtures.items()))
