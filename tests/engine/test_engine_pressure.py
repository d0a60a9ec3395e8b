"""Who loses its pages: what the loss costs decides, age only among equals, and never against the older."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagoda.engine.pressure import victim

from .test_engine_traffic import Ask, Traffic

SIZE = 4


def line(number, computed, alone):
    return SimpleNamespace(id=number, computed=computed, alone=alone)


def chosen(lines, lack):
    alone = {each.id: each.alone for each in lines}
    found = victim(lines, lack, alone.__getitem__, SIZE)
    return None if found is None else found.id


@pytest.mark.parametrize(
    ("lines", "lack", "who"),
    [
        ([], 1, None),
        ([line(3, 40, 10), line(4, 400, 100), line(5, 40, 10)], 1, 5),  # of equals the youngest
        ([line(3, 40, 10), line(4, 8, 2), line(5, 400, 100)], 1, 4),  # what is cheap to compute again
        ([line(3, 40, 10), line(4, 8, 2), line(5, 400, 100)], 5, 3),  # of those that give enough
        ([line(3, 40, 10), line(4, 8, 2), line(5, 41, 0)], 1, 4),  # one that shares all its pages gives none
        ([line(3, 40, 10), line(4, 8, 2)], 11, 3),  # none gives enough: the one that gives most
        ([line(3, 40, 0), line(4, 40, 0)], 1, 4),  # they share with each other: one after the other
        ([line(3, 402, 1), line(4, 9, 3)], 1, 3),  # of a long one, what others hold is not lost
    ],
)
def test_the_choice(lines, lack, who):
    assert chosen(lines, lack) == who


@given(
    st.lists(st.tuples(st.integers(1, 60), st.integers(0, 15)), max_size=8),
    st.integers(1, 12),
)
def test_as_many_as_it_takes(pairs, lack):
    """One after the other, until there is enough or nobody is left: never more than one that was not needed."""
    lines = [line(i, max(computed, 1), min(alone, -(-computed // SIZE))) for i, (computed, alone) in enumerate(pairs)]
    gave = 0
    while gave < lack and (who := chosen(lines, lack - gave)) is not None:
        (taken,) = [each for each in lines if each.id == who]
        needed = lack - gave
        assert taken.alone >= needed or all(each.alone <= taken.alone for each in lines)
        gave += taken.alone
        lines.remove(taken)
    assert gave >= lack or not lines


def test_a_long_prompt_in_the_making_outlives_a_short_answer():
    """It is the youngest, but the oldest needs one page only, and the second oldest has less to compute again."""
    asks = [Ask((1, 2, 3), 30, ignore_eos=True), Ask((4, 5), 30, ignore_eos=True, at=1)]
    asks += [Ask(tuple([6, 7] * 20), 12, ignore_eos=True, at=2)]
    traffic = Traffic(asks, pages=(14,), page_size=4, chunk=48, prefix_cache=False)
    traffic.play()
    traffic.compare()
    assert set(traffic.observer.victims) == {"1"}
    assert traffic.runner.rows < 150, "with the prompt computed again it would be 180"


def test_choices_of_one_prompt_do_not_lose_it_for_nothing():
    """Two choices share a prompt of which neither can give a page; a third request can."""
    asks = [Ask((9, 8, 7), 28, ignore_eos=True), Ask((1, 2), 6, ignore_eos=True, at=2)]
    asks += [Ask(tuple([3] * 17), 4, n=2, ignore_eos=True, at=3)]
    traffic = Traffic(asks, pages=(12,), page_size=4, chunk=48, prefix_cache=False)
    traffic.play()
    traffic.compare()
    finals = {key: events[-1].timings.preemptions for key, events in traffic.events.items()}
    assert finals["0", 0] == 0, "the oldest is never a victim"
