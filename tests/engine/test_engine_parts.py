"""Single parts of the control room: the queue's order, the order of lengths, text at the end of a sequence."""

from __future__ import annotations

import math
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagoda.cache import KVCache
from pagoda.engine.beginnings import Beginnings
from pagoda.engine.finish import Finish
from pagoda.engine.outline import Outline
from pagoda.engine.queue import WaitingQueue
from pagoda.engine.request import RequestState
from pagoda.engine.roster import Roster
from pagoda.engine.shares import QUANTUM, Shares
from pagoda.engine.urgency import FIRST, rank_of
from pagoda.plan import LAST, Sampled
from pagoda.types import FinishReason

from .fakes import STOP, FakeTokenizer, capacity, request


def state(prompt=(1, 2, 3), ids=None, **params):
    params.setdefault("max_tokens", 10)
    ask = request(capacity(), prompt, **params)
    return RequestState(ask, [].append, ids or count(), stop_ids=frozenset({STOP}))


RANKS = st.sampled_from([-2.0, 0.0, 0.1, 0.3, 5.0])


@given(st.lists(st.tuples(st.sampled_from("pppdhc"), st.integers(0, 20), st.sampled_from("abc"), RANKS), max_size=80))
def test_the_queue_has_the_least_served_tenants_most_urgent_first(moves):
    """Against a search through all: new ones, returned ones, those that leave, and tenants that are served."""
    ids, shares = count(), Shares()
    queue, model = WaitingQueue(shares), []
    for move, pick, tenant, rank in moves:
        if move == "p":
            (sequence,) = state(ids=ids, tenant=tenant).sequences
            sequence.rank = rank
            shares.opened(tenant)
            queue.push(sequence)
            model.append(sequence)
        elif move == "d" and model:
            sequence = model.pop(pick % len(model))
            queue.discard(sequence)
            queue.discard(sequence)
            shares.closed(sequence.key)
        elif move == "c" and any(s.key == tenant for s in model):
            shares.charge(tenant, 100 * pick)
        elif move == "h" and model:
            head = queue.head()
            queue.discard(head)
            if pick % 2:  # it comes back, as if preempted
                head.rank = FIRST
                queue.push(head)
            else:
                model.remove(head)
                shares.closed(head.key)
        queue.check()
        shares.check()
        best = min(model, key=lambda s: (shares.level(s.key), s.rank, s.id), default=None)
        assert queue.head() is best
        assert len(queue) == len(model)
        assert queue.tokens == 3 * len(model)


def test_the_backlog_counts_what_is_before_a_rank():
    ids, shares = count(), Shares()
    queue = WaitingQueue(shares)
    for tenant, rank in (("a", 1.0), ("a", 2.0), ("a", 9.0), ("b", 0.5)):
        (sequence,) = state(ids=ids, tenant=tenant).sequences
        sequence.rank = rank
        shares.opened(tenant)
        queue.push(sequence)
    assert queue.ahead("a", 3.0) == (2, 6, 3)
    assert queue.ahead("c", 3.0) == (0, 0, 12)


def test_a_beginning_counts_for_those_who_come_after_whoever_computes_it():
    beginnings = Beginnings(4)
    prompt = tuple(range(18))
    assert beginnings.ahead("t", prompt, 0, 5.0) == (0, -math.inf)
    beginnings.add("a", "t", prompt[:13], 0, 3.0)
    beginnings.check()
    assert beginnings.ahead("t", prompt, 0, 5.0) == (12, 3.0)
    assert beginnings.ahead("t", prompt, 14, 5.0) == (14, -math.inf), "more was found already"
    assert beginnings.ahead("t", prompt, 0, 2.0)[0] == 0, "it comes before"
    assert beginnings.ahead("other", prompt, 0, 5.0)[0] == 0
    assert beginnings.ahead("t", (*prompt[:7], 99, *prompt[8:]), 0, 5.0) == (4, 3.0), "whole pages only"
    assert beginnings.ahead("t", prompt[:12], 0, 5.0)[0] == 8, "the last token is always computed"
    beginnings.add("b", "t", prompt, 4, 1.0)
    beginnings.check()
    assert beginnings.ahead("t", prompt, 0, 2.0)[0] == 0, "of its first page nobody else is in time"
    assert beginnings.ahead("t", prompt, 4, 2.0) == (16, 1.0)
    beginnings.remove("a")
    beginnings.remove("a")
    beginnings.check()
    assert beginnings.ahead("t", prompt, 4, 5.0) == (16, 1.0)
    beginnings.remove("b")
    beginnings.check()
    assert beginnings.ahead("t", prompt, 4, 5.0)[0] == 4


def test_a_tenant_saves_up_no_claim_by_staying_away():
    shares = Shares()
    shares.opened("a")
    shares.charge("a", 10 * QUANTUM)
    shares.serve("a")
    shares.opened("b")
    assert (shares.level("a"), shares.level("b")) == (10, 2)
    shares.charge("b", 3 * QUANTUM)
    shares.closed("b")
    shares.opened("b")
    assert shares.level("b") == 5, "nor does it lose a debt"
    shares.check()


@pytest.mark.parametrize(
    ("seconds", "target", "priority", "due"),
    [(0.01, None, 0, 10.5), (1.0, None, 0, 13.0), (1.0, 2.0, 0, 12.0), (3.0, 2.0, 0, 19.0), (1.0, 2.0, 2, 10.0)],
)
def test_when_a_request_is_due(seconds, target, priority, due):
    ask = request(capacity(), arrival=10.0, priority=priority)
    assert rank_of(ask, seconds, target) == pytest.approx(due)


def test_due_follows_the_one_rule():
    (sequence,) = state(max_tokens=3).sequences
    sequence.holds_pages = True
    assert (sequence.due(), sequence.tokens(0, 3)) == (3, (1, 2, 3))
    sequence.computed, sequence.pending = 3, 1
    assert (sequence.due(), sequence.tokens(3, 4)) == (1, (LAST,))
    sequence.computed, sequence.pending = 4, 2
    assert (sequence.due(), sequence.tokens(4, 5)) == (1, (LAST,))
    sequence.computed, sequence.pending = 5, 3
    assert sequence.due() == 0, "max_tokens are in flight"


def test_a_preempted_sequence_waits_for_values_it_cannot_name():
    (sequence,) = state(max_tokens=9).sequences
    sequence.holds_pages, sequence.pending = True, 2
    assert sequence.due() == 3
    sequence.computed = 3
    assert sequence.due() == 0, "two tokens are in flight, and LAST names the second"
    sequence.pending, sequence.output = 1, [7]
    assert (sequence.due(), sequence.tokens(3, 4)) == (1, (7,))
    sequence.computed = 4
    assert (sequence.due(), sequence.tokens(4, 5)) == (1, (LAST,))


def test_tokens_reach_from_prompt_into_output():
    (sequence,) = state().sequences
    sequence.output = [7, 8, 9]
    assert sequence.tokens(1, 5) == (2, 3, 7, 8)
    assert sequence.tokens(0, 2) == (1, 2)
    assert sequence.tokens(4, 6) == (8, 9)


def test_lengths_are_asserted():
    (sequence,) = state().sequences
    sequence.check()
    sequence.computed = 2
    with pytest.raises(AssertionError, match="computed without pages"):
        sequence.check()
    sequence.holds_pages, sequence.computed = True, 4
    with pytest.raises(AssertionError, match="lengths of"):
        sequence.check()


def test_lengths_move_when_a_plan_is_closed():
    cache = KVCache((8,), 4)
    roster = Roster(cache, 8)
    roster.add(state())
    (sequence,) = roster.live.values()
    roster.admit(sequence, roster.match(sequence))
    outline = Outline(8)
    outline.add(sequence, 3, cache.extend(0, 0, 3), cache.table(0))
    assert (sequence.computed, sequence.known, outline.rows) == (0, 3, 5)
    plan = outline.close(1, ())
    assert (sequence.computed, sequence.known) == (3, 4)
    assert plan.chunks[0].samples
    roster.check()


def feed(tokens, **params):
    (sequence,) = state(**params).sequences
    finish, events = Finish(FakeTokenizer()), []
    for now, token in enumerate(tokens):
        sequence.pending += 1
        sequence.planned_at = 0.0
        events.append(finish.apply(sequence, Sampled(0, token), float(now)).event)
    return events


def test_a_stop_token_gives_no_text_and_counts():
    events = feed([0, 3, STOP])
    assert [e.text for e in events] == ["a", "", "\ufffd"], "an unfinished character comes as U+FFFD with the end"
    assert events[-1].finish is FinishReason.STOP
    assert events[-1].completion_tokens == 3
    assert events[-1].token_ids == (STOP,)


def test_text_that_might_begin_a_stop_string_comes_with_the_end():
    events = feed([2, 0, STOP], stop=("abb",))
    assert [e.text for e in events] == ["", "ab", "a"]
    events = feed([2, 0], stop=("abb",), max_tokens=2)
    assert [(e.text, e.finish) for e in events] == [("", None), ("aba", FinishReason.LENGTH)]


def test_a_stop_string_at_the_last_token_is_a_stop():
    events = feed([2, 1], stop=("abb",), max_tokens=2)
    assert [(e.text, e.finish) for e in events] == [("", None), ("", FinishReason.STOP)]


def test_a_stop_string_that_the_flush_completes_is_a_stop():
    events = feed([0, 3], stop=("\ufffd",), max_tokens=2)
    assert [(e.text, e.finish) for e in events] == [("a", None), ("", FinishReason.STOP)]


def test_a_stop_token_of_the_request_ends_it_too():
    events = feed([0, 1], stop_token_ids=(1,))
    assert [(e.text, e.finish) for e in events] == [("a", None), ("", FinishReason.STOP)]


def test_times_count_from_arrival():
    timings = feed([0, 1, STOP], arrival=-1.0)[-1].timings
    assert (timings.queued, timings.first_token, timings.total) == (1.0, 1.0, 3.0)
