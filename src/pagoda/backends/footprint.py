"""What a program of the native backend will take of memory and read for each token, found without any of its weights.

Records the model as the backend itself does, over weights that have only a shape, and counts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from pagoda.backends import _native
from pagoda.backends.cpu import DENSE, check_format, prepare
from pagoda.backends.ops import Ints, Ops
from pagoda.backends.recorder import NativeWeight, Op, Recorder

BLOCK = 32
"""Numbers of activations that share a scale, as `kBlock` in native/src/kernels.h."""
BLOCK_EXTRA = 12
"""Bytes beside a block's numbers: its scale and two sums."""


@dataclass(frozen=True, slots=True)
class Footprint:
    """Bytes."""

    read: int
    """Weights that a step of one row reads: every matrix it multiplies by, and one row of the embedding."""
    row: int
    """Of step memory, for each row of a step."""
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
    read = 0
    for i in recording.instructions:
        for w in (recording.matrices[c] for c in i.constants if i.op in (Op.LINEAR, Op.EMBED, Op.EXPERTS)):
            whole = _native.packed_bytes(formats[w.name], *w.shape)
            if i.op is Op.EXPERTS:  # of all experts, those that a row is sent to
                experts, chosen, _ = i.whole
                read += whole * chosen // experts
            else:
                read += whole if i.op is Op.LINEAR else whole // w.shape[0]
    rows = {"R": 0, "S": 0}
    for b in buffers:
        rows[b.rows] += b.width * b.integer + b.width // BLOCK * BLOCK_EXTRA if b.integer else b.width * 4
    return Footprint(read, rows["R"], rows["S"])
