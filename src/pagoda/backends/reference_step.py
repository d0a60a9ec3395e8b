"""What a step promises, and what is done with it around a program: for the reference backend, in plain Python.

Knows the arrays of `Step` and the sequences' tokens; does not know what a program computes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from pagoda.backends.ops import Draw, Floats, Ints, Step
from pagoda.backends.reference_store import ReferenceSlots
from pagoda.backends.sampling import likeliest, log_softmax, sample

LOGITS = "logits"
"""The output that draws sample."""


def check_step(step: Step, groups: int) -> None:
    """Check what `Step` promises.

    Raises:
        ValueError: it does not hold; the message says which part.
    """
    rows = len(step.ids)
    for name in ("ids", "positions", "sequences", "sampled", "slots"):
        array = getattr(step, name)
        if array.dtype != np.int32 or array.ndim != 1:
            raise ValueError(f"Step.{name} must be one row of int32, got {array.ndim} axes of {array.dtype}")
        if name in ("positions", "sequences") and len(array) != rows:
            raise ValueError(f"Step.{name} must have {rows} numbers, one for each of Step.ids, got {len(array)}")
    if rows == 0:
        raise ValueError("a step has at least one row")
    if step.positions.min() < 0 or step.sequences.min() < 0:
        raise ValueError("Step.positions and Step.sequences must not be negative")
    change = np.diff(step.sequences)
    if (change < 0).any():
        raise ValueError(f"Step.sequences must not descend, got {step.sequences.tolist()}")
    if (np.diff(step.positions)[change == 0] <= 0).any():
        raise ValueError(f"Step.positions must ascend within a sequence, got {step.positions.tolist()}")
    sampled = step.sampled
    if len(sampled) and (sampled.min() < 0 or sampled.max() >= rows or (np.diff(sampled) < 0).any()):
        raise ValueError(f"Step.sampled must be ascending rows under {rows}, got {sampled.tolist()}")
    _check_sequences(step, int(step.sequences[-1]) + 1, groups)
    _check_parents(step, int(step.sequences[-1]) + 1)


def _check_sequences(step: Step, sequences: int, groups: int) -> None:
    if len(step.slots) not in (0, sequences):
        raise ValueError(f"Step.slots must have one slot for each of {sequences} sequences, got {step.slots.tolist()}")
    if len(step.tables) != groups:
        raise ValueError(f"Step.tables must have one table for each of {groups} KV groups, got {len(step.tables)}")
    for table in step.tables:
        if table.dtype != np.int32 or table.ndim != 2 or len(table) != sequences:
            raise ValueError(f"a page table must be [{sequences}, pages] of int32, got {table.shape} of {table.dtype}")


def _check_parents(step: Step, sequences: int) -> None:
    parents = step.parents
    if len(parents) not in (0, sequences):
        raise ValueError(f"Step.parents must have one row for each of {sequences} sequences, got {parents.tolist()}")
    for path, parent in enumerate(parents.tolist()):
        if parent == -1:
            continue
        rows = np.flatnonzero(step.sequences == path)
        if not len(rows) or not 0 <= parent < rows[0]:
            raise ValueError(f"a path's parent must be a row before its first, got {parent} for {rows.tolist()}")
        if step.positions[parent] + 1 != step.positions[rows[0]]:
            raise ValueError(f"a path must go on at the position after its parent's, row {parent}: {step.positions}")
        if len(step.slots) and step.slots[step.sequences[parent]] != step.slots[path]:
            raise ValueError(f"a path and its parent's must have one slot, got {step.slots.tolist()}")


def before(step: Step) -> list[int]:
    """Of each row, the row that it follows in this step: of its own sequence, or its path's parent; -1: none."""
    found = []
    for row, sequence in enumerate(step.sequences.tolist()):
        if row and step.sequences[row - 1] == sequence:
            found.append(row - 1)
        else:
            found.append(int(step.parents[sequence]) if len(step.parents) else -1)
    return found


def writes(step: Step, table: Ints, page_size: int) -> tuple[Ints, Ints]:
    """(rows, pages): where each row's keys and values go, once in its own sequence and in those of all paths that leave
    it or a row that follows it, where their pages are others.
    """
    places, follows = step.positions // page_size, before(step)
    found = dict.fromkeys((row, int(table[s, places[row]])) for row, s in enumerate(step.sequences.tolist()))
    for path, row in enumerate(step.parents.tolist()):
        while row >= 0:
            found[row, int(table[path, places[row]])] = None
            row = follows[row]
    rows, pages = zip(*found, strict=True)
    return np.array(rows, np.int32), np.array(pages, np.int32)


def known_ids(step: Step, slots: ReferenceSlots) -> Ints:
    """`Step.ids` with -1 replaced by the token that its sequence sampled last, and less by that of its guesses."""
    ids = step.ids.copy()
    for row in np.flatnonzero(ids < 0) if len(step.slots) else ():
        sequence = step.sequences[row]
        if ids[row] == -1:
            ids[row] = slots.last(int(step.slots[sequence]))
        else:
            ids[row] = slots.guess(int(step.guesses[sequence]), -2 - int(ids[row]))
    return ids


Drawn = tuple[tuple[int, ...], tuple[int, ...], tuple[float, ...], tuple[tuple[tuple[int, float], ...], ...]]


def draw_rows(outputs: dict[str, Floats], step: Step, slots: ReferenceSlots, draws: Sequence[Draw]) -> Drawn:
    """Each draw's count of tokens; then tokens, log-probabilities and likeliest tokens. The tokens join their slots."""
    if LOGITS not in outputs or sum(1 + draw.drafts for draw in draws) != len(step.sampled):
        rows = len(step.sampled)
        raise ValueError(
            f"one draw is needed for each of {rows} sampled rows of {LOGITS!r} that is no draft's: {draws}"
        )
    logits, first = outputs[LOGITS], 0
    follows, ids = before(step), step.ids
    counts: list[int] = []
    tokens: list[int] = []
    logprobs: list[float] = []
    top: list[tuple[tuple[int, float], ...]] = []
    for draw in draws:
        given, at, end = len(tokens), first, first + 1 + draw.drafts
        if any(follows[row] < step.sampled[at] for row in step.sampled[at + 1 : end]):
            raise ValueError(f"drafts are in the rows right after their sequence's, got {step.sampled[at:end]}")
        while True:
            x, here = logits[at], replace(draw, position=draw.position + len(tokens) - given)
            token = sample(x, here, *slots.tokens(draw.slot)).token
            slots.push(draw.slot, token)
            tokens.append(token)
            logprobs.append(float(log_softmax(x)[token]) if draw.logprobs >= 0 else 0.0)
            top.append(likeliest(x, max(draw.logprobs, 0)))
            row = step.sampled[at]
            right = (i for i in range(at + 1, end) if follows[step.sampled[i]] == row and ids[step.sampled[i]] == token)
            if (at := next(right, -1)) < 0:
                break
        counts.append(len(tokens) - given)
        first += 1 + draw.drafts
    return tuple(counts), tuple(tokens), tuple(logprobs), tuple(top)
