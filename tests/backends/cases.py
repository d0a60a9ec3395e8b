"""A `Case`: a program, its weights and the steps it runs; and the ways to cut a step up that must change nothing.

Inputs and outputs are named by their row class: "R.x" has a row for each token of the step, "S.x" one for each
sampled row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from pagoda.backends.ops import Backend, Floats, Ints, KVGroup, KVStore, Ops, Step, StoredTensor

UNREAD = np.int32(2**31 - 1)
"""Stands in page tables past a sequence's end: nobody may read it."""


@dataclass(frozen=True, eq=False)
class Case:
    name: str
    build: Callable[[Any, list[Any]], None]
    """(ops, weights), to be called as `Backend.program` calls it."""
    steps: tuple[Step, ...]
    tensors: tuple[StoredTensor, ...] = ()
    groups: tuple[KVGroup, ...] = ()
    pages: int = 0
    """Of each group."""
    page_size: int = 16
    kv_format: str = "f32"
    tolerance: float = 2e-6
    """Relative to a row's root mean square, or to the number itself if `elementwise`; 0 wants equal numbers."""
    elementwise: bool = False
    floor: dict[str, Floats] = field(default_factory=dict)
    """Per output of the first step [rows]: what the tolerance is relative to, where a row's mean square is less."""

    def __str__(self) -> str:
        return self.name


def open_store(backend: Backend, case: Case) -> KVStore:
    return backend.kv_store(case.groups, [case.pages] * len(case.groups), case.page_size, case.kv_format)


def run(backend: Backend, case: Case, kv: KVStore | None = None) -> list[dict[str, Floats]]:
    """The outputs of each of the case's steps."""
    weights = [backend.weight(tensor) for tensor in case.tensors]

    def build(ops: Ops) -> None:
        case.build(ops, weights)

    program = backend.program(build)
    kv = open_store(backend, case) if kv is None else kv
    return [program.run(kv, step) for step in case.steps]


def make_step(
    spans: Sequence[tuple[int, int]],
    tables: tuple[Ints, ...] = (),
    sampled: Sequence[int] = (),
    ids: Ints | None = None,
    inputs: dict[str, Floats] | None = None,
) -> Step:
    """A step that computes positions start to end - 1 of sequence i for the i-th (start, end) of `spans`."""
    positions = np.concatenate([np.arange(a, b) for a, b in spans]).astype(np.int32)
    sequences = np.repeat(np.arange(len(spans)), [b - a for a, b in spans]).astype(np.int32)
    ids = np.zeros(len(positions), np.int32) if ids is None else ids
    return Step(ids, positions, sequences, tables, np.array(sampled, np.int32), inputs or {})


def plain_step(rows: int, sampled: Sequence[int] = (), **rest: Any) -> Step:
    """A step of one sequence, from position 0."""
    return make_step([(0, rows)], sampled=sampled, **rest)


def make_table(rng: np.random.Generator, lengths: Sequence[int], page_size: int) -> Ints:
    """A page table for sequences of these lengths, its pages in no order, `UNREAD` past each one's end."""
    counts = [-(-length // page_size) for length in lengths]
    free = iter(rng.permutation(sum(counts) + 1))  # one more than needed: a page number that goes unused
    table = np.full((len(lengths), max(counts) + 1), UNREAD, np.int32)
    for row, count in enumerate(counts):
        table[row, :count] = [next(free) for _ in range(count)]
    return table


def part(step: Step, rows: Ints) -> Step:
    """The step that computes only these rows (ascending) of a step; its sequences are numbered anew."""
    used, sequences = np.unique(step.sequences[rows], return_inverse=True)
    wanted = np.isin(step.sampled, rows)
    return Step(
        step.ids[rows],
        step.positions[rows],
        sequences.astype(np.int32),
        tuple(table[used] for table in step.tables),
        np.searchsorted(rows, step.sampled[wanted]).astype(np.int32),
        {name: x[rows if name.startswith("R.") else wanted] for name, x in step.inputs.items()},
    )


def run_parts(
    backend: Backend, case: Case, cut: Callable[[Step], Iterator[Ints]], kv: KVStore | None = None
) -> list[dict[str, Floats]]:
    """As `run`, each step computed in the parts that `cut` makes of it, put together again."""
    parts = [list(cut(step)) for step in case.steps]
    small = tuple(part(step, rows) for step, cuts in zip(case.steps, parts, strict=True) for rows in cuts)
    results = iter(run(backend, replace(case, steps=small), kv))
    whole = []
    for step, cuts in zip(case.steps, parts, strict=True):
        assembled: dict[str, Floats] = {}
        for rows in cuts:
            for name, x in next(results).items():
                into_r = name.startswith("R.")
                count = len(step.ids if into_r else step.sampled)
                target = assembled.setdefault(name, np.full((count, x.shape[1]), np.nan, np.float32))
                target[rows if into_r else np.isin(step.sampled, rows)] = x
        whole.append(assembled)
    return whole


def row_by_row(step: Step) -> Iterator[Ints]:
    """Each row alone."""
    yield from np.arange(len(step.ids), dtype=np.int32).reshape(-1, 1)


def by_sequence(step: Step) -> Iterator[Ints]:
    """Each sequence alone, the last one first."""
    for sequence in np.unique(step.sequences)[::-1]:
        yield np.flatnonzero(step.sequences == sequence).astype(np.int32)


def in_chunks(seed: int) -> Callable[[Step], Iterator[Ints]]:
    """Rounds in which every sequence computes a random number of its next rows, none included."""

    def cut(step: Step) -> Iterator[Ints]:
        rng = np.random.default_rng(seed)
        left = [list(np.flatnonzero(step.sequences == s)) for s in np.unique(step.sequences)]
        while any(left):
            counts = rng.integers(0, 40, len(left))
            rows = [row for rest, count in zip(left, counts, strict=True) for row in rest[:count]]
            left = [rest[count:] for rest, count in zip(left, counts, strict=True)]
            if rows:
                yield np.array(rows, np.int32)

    return cut
