"""Passes over a recording: fusions, and which values may share memory.

Each fusion joins neighbours that the native executor can do in one go, saving a trip through memory and a meeting of
all threads. None changes a bit: tests run every program fused and not.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import replace

from pagoda.backends.recorder import NONE, Instruction, Op, Recording, Shape


def _readers(recording: Recording) -> Counter[int]:
    return Counter(v for i in recording.instructions for v in i.uses())


def _makers(recording: Recording) -> dict[int, int]:
    return {v: at for at, i in enumerate(recording.instructions) for v in i.makes()}


def fuse_quantize(recording: Recording) -> None:
    """Norm or activation, then quantise: the row is quantised while it is at hand."""
    readers, makers = _readers(recording), _makers(recording)
    kept: list[Instruction | None] = list(recording.instructions)
    for at, i in enumerate(recording.instructions):
        if i.op is not Op.QUANTIZE:
            continue
        source = i.reads[0]
        maker = kept[makers[source]] if source in makers else None
        if maker is None or maker.op not in (Op.NORM, Op.ACT) or source not in maker.writes:
            continue
        *before, own, _ = maker.writes
        wanted = own if readers[source] > 1 else NONE
        kept[makers[source]] = replace(maker, writes=(*before, wanted, i.writes[0]))
        kept[at] = None
    recording.instructions = [i for i in kept if i]


def fuse_residual(recording: Recording) -> None:
    """Add, then norm of the sum, one right after the other: the sum is written and normed in one go."""
    joined: list[Instruction] = []
    for i in recording.instructions:
        last = joined[-1] if joined else None
        if last and i.op is Op.NORM and last.op is Op.ADD and i.reads == (last.writes[0], NONE):
            joined[-1] = replace(i, reads=last.reads, writes=(last.writes[0], *i.writes[1:]))
        else:
            joined.append(i)
    recording.instructions = joined


def fuse_rope_store(recording: Recording) -> None:
    """Rotate, then store the rotated keys: they go straight to their page."""
    readers = _readers(recording)
    joined: list[Instruction] = []
    for i in recording.instructions:
        last = joined[-1] if joined else None
        if last and i.op is Op.STORE and last.op is Op.ROPE and i.reads[0] == last.writes[1]:
            alone = readers[i.reads[0]] == 1 and readers[last.reads[1]] == 1
            if alone:
                joined[-1] = replace(
                    last,
                    op=Op.ROPE_STORE,
                    reads=(*last.reads, i.reads[1]),
                    writes=last.writes[:1],
                    whole=last.whole + i.whole,
                )
                continue
        joined.append(i)
    recording.instructions = joined


FUSIONS: tuple[Callable[[Recording], None], ...] = (fuse_quantize, fuse_residual, fuse_rope_store)


def share_memory(recording: Recording, keep: int = NONE) -> list[Shape]:
    """Renumber values so that those of one shape whose lives do not overlap share a buffer; the buffers' shapes.

    A value lives from the instruction that makes it to the last that reads it; `keep` lives to the end.
    """
    last_use = {v: at for at, i in enumerate(recording.instructions) for v in (*i.uses(), *i.makes())}
    if keep != NONE:
        last_use[keep] = len(recording.instructions)
    free: defaultdict[Shape, list[int]] = defaultdict(list)
    buffers: list[Shape] = []
    place: dict[int, int] = {}
    renumbered: list[Instruction] = []
    for at, i in enumerate(recording.instructions):
        for v in i.makes():
            if v in place:
                continue
            shape = recording.shapes[v]
            if free[shape]:
                place[v] = free[shape].pop()
            else:
                buffers.append(shape)
                place[v] = len(buffers) - 1
        renumbered.append(
            replace(
                i,
                reads=tuple(place[v] if v != NONE else NONE for v in i.reads),
                writes=tuple(place[v] if v != NONE else NONE for v in i.writes),
            )
        )
        for v in {*i.uses(), *i.makes()}:
            if last_use[v] == at:
                free[recording.shapes[v]].append(place[v])
    recording.instructions = renumbered
    recording.shapes = buffers
    return buffers
