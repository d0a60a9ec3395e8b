"""The batcher under random plans: every array is what the plan says, and slots have one owner each."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from pagoda.plan import LAST, Chunk, PageCopy, SequenceStart, StepPlan
from pagoda.runner.batch import Batcher
from pagoda.types import SamplingParams


def start(sequence: int, prompt: tuple[int, ...] = (1, 2), choice: int = 0, **params: Any) -> SequenceStart:
    return SequenceStart(sequence, prompt, SamplingParams(**{"seed": sequence, **params}), choice)


def chunk(
    sequence: int, tokens: tuple[int, ...] = (1,), at: int = 0, samples: bool = True, pages: Any = ((0,),)
) -> Chunk:
    return Chunk(sequence, at, tokens, pages, samples)


def test_arrays_of_a_plan() -> None:
    batcher = Batcher(2)
    plan = StepPlan(
        1,
        (
            chunk(7, (5, 6, 7), 10, False, ((4, 2), (9,))),
            chunk(3, (LAST,), 2, True, ((1,), (8, 6, 5))),
            chunk(4, (9, 8), 0, True, ((3, 0), (7,))),
        ),
        (start(7), start(3, (4, 4, 4)), start(4)),
        (PageCopy(1, 2, 3, 5),),
    )
    step, draws = batcher.batch(plan)
    batcher.check()
    assert step.ids.tolist() == [5, 6, 7, -1, 9, 8]
    assert step.positions.tolist() == [10, 11, 12, 2, 0, 1]
    assert step.sequences.tolist() == [0, 0, 0, 1, 2, 2]
    assert step.sampled.tolist() == [3, 5]
    assert [table[:, :n].tolist() for table, n in zip(step.tables, (1, 1), strict=True)] == [
        [[4], [1], [3]],
        [[9], [8], [7]],
    ]
    assert step.tables[0][0].tolist() == [4, 2]
    assert step.tables[1][1].tolist() == [8, 6, 5]
    assert step.copies == ((1, 2, 3, 5),)
    assert [(slot, prompt.tolist()) for slot, prompt in step.starts] == [(0, [1, 2]), (1, [4, 4, 4]), (2, [1, 2])]
    assert step.slots.tolist() == [0, 1, 2]
    assert all(
        a.dtype == np.int32 for a in (step.ids, step.positions, step.sequences, step.sampled, step.slots, *step.tables)
    )
    assert [(d.slot, d.seed, d.position) for d in draws] == [(1, 3, 3), (2, 4, 2)]


def test_arrays_of_a_tree() -> None:
    """A line of rows for each path: the last known token and the first path, then what others have of their own."""
    batcher = Batcher(1)
    batcher.batch(StepPlan(1, (chunk(1), chunk(2)), (start(1), start(2))))
    tree = Chunk(
        1, 8, (LAST, 5, 6, 7, 8, 9), ((3, 4, 5),), True, 5, "tree", (-1, 0, 1, 0, -1), (((3, 4, 6),), ((3, 9),))
    )
    step, draws = batcher.batch(StepPlan(2, (chunk(2, (4, 4), 1), tree)))
    assert step.ids.tolist() == [4, 4, -1, 5, 6, 7, 8, 9]
    assert step.positions.tolist() == [1, 2, 8, 9, 10, 11, 10, 9]
    assert step.sequences.tolist() == [0, 0, 1, 1, 1, 1, 2, 3]
    assert step.parents.tolist() == [-1, -1, 3, 2]
    assert step.slots.tolist() == [1, 0, 0, 0]
    assert [row[:n] for row, n in zip(step.tables[0].tolist(), (1, 3, 3, 2), strict=True)] == [
        [0], [3, 4, 5], [3, 4, 6], [3, 9],
    ]  # fmt: skip
    assert step.sampled.tolist() == [1, 2, 3, 4, 5, 6, 7]
    assert [(d.slot, d.position, d.drafts) for d in draws] == [(1, 3, 0), (0, 9, 5)]
    batcher.check()


@pytest.mark.parametrize(("asked", "handed"), [(None, -1), (0, 0), (5, 5)])
def test_a_draw_says_all_of_the_parameters(asked: int | None, handed: int) -> None:
    params = SamplingParams(
        temperature=0.5, top_p=0.6, top_k=7, min_p=0.1, seed=2**64 - 1, presence_penalty=0.2, frequency_penalty=0.3,
        repetition_penalty=1.4, logprobs=asked,
    )  # fmt: skip
    plan = StepPlan(1, (chunk(1, (1, 2), 3),), (SequenceStart(1, (9,), params, 6),))
    _, (draw,) = Batcher(1).batch(plan)
    assert (draw.temperature, draw.top_p, draw.top_k, draw.min_p) == (0.5, 0.6, 7, 0.1)
    assert (draw.presence, draw.frequency, draw.repetition) == (0.2, 0.3, 1.4)
    assert (draw.seed, draw.choice, draw.position, draw.logprobs) == (2**64 - 1, 6, 5, handed)


def test_a_seed_must_have_been_drawn() -> None:
    plan = StepPlan(1, (chunk(1),), (SequenceStart(1, (9,), SamplingParams(), 0),))
    with pytest.raises(AssertionError, match="seed is drawn when it is admitted"):
        Batcher(1).batch(plan)


def test_a_table_is_read_again_when_it_is_another_object() -> None:
    """Tables are the same object until they change; one of the same length but other pages is another."""
    batcher, table = Batcher(1), (3, 4)
    batcher.batch(StepPlan(1, (chunk(1, pages=(table,)),), (start(1),)))
    same, _ = batcher.batch(StepPlan(2, (chunk(1, at=1, pages=(table,)),)))
    other, _ = batcher.batch(StepPlan(3, (chunk(1, at=2, pages=((3, 9),)),)))
    assert same.tables[0].tolist() == [[3, 4]]
    assert other.tables[0].tolist() == [[3, 9]]


def test_a_step_keeps_its_arrays() -> None:
    """A step in flight is not touched by later ones."""
    batcher, table = Batcher(1), (3, 4)
    first, _ = batcher.batch(StepPlan(1, (chunk(1, pages=(table,)),), (start(1),)))
    kept = first.tables[0].copy()
    second, _ = batcher.batch(StepPlan(2, (chunk(1, at=1, pages=(table,)),)))
    second.tables[0][:] = 77
    third, _ = batcher.batch(StepPlan(3, (chunk(1, at=2, pages=(table,)),)))
    assert first.tables[0].tolist() == third.tables[0].tolist() == kept.tolist()


def test_slots_go_from_one_sequence_to_the_next_only_after_its_end() -> None:
    """An end frees the slot for later plans, not for the starts of its own: those come before the pass."""
    batcher = Batcher(1)
    batcher.batch(StepPlan(1, (chunk(1),), (start(1),)))
    step, _ = batcher.batch(StepPlan(2, (chunk(2),), (start(2),), ends=(1,)))
    assert [slot for slot, _ in step.starts] == [1]
    step, _ = batcher.batch(StepPlan(3, (chunk(3),), (start(3),)))
    assert [slot for slot, _ in step.starts] == [0]
    batcher.check()


@pytest.mark.parametrize("seed", range(20))
def test_random_plans(seed: int) -> None:
    rng, batcher = random.Random(seed), Batcher(1)
    alive: dict[int, int] = {}
    owner: dict[int, int] = {}
    most = 0
    for number in range(60):
        ends = tuple(s for s in alive if rng.random() < 0.2)
        starts = tuple(start(1000 * number + i) for i in range(rng.randrange(3)))
        chunks = [chunk(s) for s in alive if s not in ends and rng.random() < 0.7] + [chunk(s.sequence) for s in starts]
        if not chunks:
            continue
        step, draws = batcher.batch(StepPlan(number, tuple(chunks), starts, ends=ends))
        batcher.check()
        for s, (slot, _) in zip(starts, step.starts, strict=True):
            assert slot not in alive.values(), "a slot in use was given away"
            alive[s.sequence], owner[slot] = slot, s.sequence
        assert [owner[slot] for slot in step.slots.tolist()] == [c.sequence for c in chunks]
        assert [d.slot for d in draws] == step.slots.tolist()
        most = max(most, len(alive))
        for s in ends:
            del alive[s]
    assert max(owner) < most, "slots are used again before new ones are made"


def test_check_sees_a_lost_slot() -> None:
    batcher = Batcher(1)
    batcher.batch(StepPlan(1, (chunk(1),), (start(1),)))
    batcher._free.append(0)
    with pytest.raises(AssertionError):
        batcher.check()
