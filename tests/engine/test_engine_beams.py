"""The rule of beam search, without an engine: against exhaustive search, and its ways to stop."""

from __future__ import annotations

from itertools import product
from math import log

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pagoda.engine.ballot import Ballot
from pagoda.engine.beams import BeamSearch
from pagoda.types import FinishReason, TokenEvent, TokenLogprob

END = 0


def table(weights, width, depth):
    """A made-up model: log-probabilities of `width` tokens after each line of less than `depth` tokens."""
    model, at = {}, 0
    for length in range(depth):
        for line in product(range(width), repeat=length):
            given = [weights[(at + i) % len(weights)] for i in range(width)]
            at += width
            model[line] = [log(weight / sum(given)) for weight in given]
    return model


def run(model, width, depth, beams, **rule):
    search, most = BeamSearch(beams, depth, 2 * beams, **rule), 0
    while not search.done:
        for beam in search.beams:
            pairs = enumerate(model[beam.tokens])
            search.offer(beam.slot, sorted(pairs, key=lambda pair: (-pair[1], pair[0])))
        before = {beam.slot: beam.tokens for beam in search.beams}
        moves = search.advance(lambda tokens: tokens[-1] == END)
        search.check()
        most = max(most, len(moves))
        for move in moves:
            assert move.tokens[:-1] == before[move.parent]
        firsts = {move.parent for move in moves if move.slot == move.parent}
        assert firsts == {move.parent for move in moves}, "a parent's slot goes to its own child"
    return search, most


def exhaustive(model, width, depth, penalty):
    found = []
    for length in range(1, depth + 1):
        for line in product(range(width), repeat=length):
            whole = line[-1] == END or length == depth
            if END in line[:-1] or not whole:
                continue
            total = sum(model[line[:i]][token] for i, token in enumerate(line))
            found.append((total / length**penalty, line))
    return sorted(found, key=lambda pair: -pair[0])


@settings(max_examples=200, deadline=None)
@given(
    weights=st.lists(st.integers(1, 10**6), min_size=20, max_size=60),
    width=st.integers(2, 3),
    depth=st.integers(1, 3),
    penalty=st.sampled_from([0.0, 0.5, 1.0, 2.0, -1.0]),
)
def test_wide_beams_find_the_best_line_of_all(weights, width, depth, penalty):
    """With room for every line, and nothing given up before its time."""
    model = table(weights, width, depth)
    lines = exhaustive(model, width, depth, penalty)
    search, _ = run(model, width, depth, beams=len(lines), length_penalty=penalty, early_stopping="never")
    assert [h.score for h in search.hypotheses] == pytest.approx(
        [score for score, _ in lines[: len(search.hypotheses)]]
    )
    assert len(search.hypotheses) == len(lines)


@settings(max_examples=200, deadline=None)
@given(
    weights=st.lists(st.integers(1, 10**6), min_size=20, max_size=60),
    width=st.integers(2, 4),
    depth=st.integers(1, 4),
    beams=st.integers(1, 4),
    penalty=st.sampled_from([0.0, 1.0, 2.0, -1.0]),
    early=st.sampled_from([False, True, "never"]),
)
def test_a_search_ends_with_as_many_lines_as_it_is_wide(weights, width, depth, beams, penalty, early):
    model = table(weights, width, depth)
    search, most = run(model, width, depth, beams, length_penalty=penalty, early_stopping=early)
    possible = len(exhaustive(model, width, depth, penalty))
    assert most <= beams
    assert 1 <= len(search.hypotheses) <= min(beams, possible)
    assert len({h.tokens for h in search.hypotheses}) == len(search.hypotheses)
    if beams <= width:
        assert len(search.hypotheses) == beams


ROUNDS = [[(END, -0.1), (1, -2.5)], [(END, -0.2), (1, -2.0)], [(1, -0.01), (END, -9.0)], [(1, -0.01), (END, -9.0)]]
"""What one beam is offered, round by round: it could end well at once, or ever so slowly get better on average."""


@pytest.mark.parametrize(
    ("rule", "rounds"),
    [
        ({"early_stopping": True}, 1),
        ({"early_stopping": False}, 1),  # -2.5 is worse than -0.1
        ({"early_stopping": "never"}, 1),  # -2.5 / 4 is worse, too
        ({"early_stopping": "never", "length_penalty": 3.0}, 4),  # -2.5 / 4 ** 3 is better
        ({"early_stopping": False, "length_penalty": 3.0}, 1),
    ],
)
def test_when_a_search_is_over(rule, rounds):
    search, played = BeamSearch(1, 4, 2, **rule), 0
    for offer in ROUNDS:
        if not search.done:
            search.offer(search.beams[0].slot, offer)
            search.advance(lambda tokens: tokens[-1] == END)
            played += 1
    assert search.done
    assert played == rounds


def test_equal_lines_go_by_rank_then_by_token():
    search = BeamSearch(2, 9, 4)
    search.offer(0, [(5, -1.0), (7, -1.0), (9, -1.0)])
    assert [move.tokens for move in search.advance(lambda _: False)] == [(5,), (7,)]
    search.offer(1, [(3, -1.0), (4, -1.0)])  # in whatever order they come
    search.offer(0, [(8, -1.0), (9, -1.0)])
    moves = search.advance(lambda _: False)
    assert [(move.tokens, move.slot, move.parent) for move in moves] == [((5, 8), 0, 0), ((5, 9), 1, 0)]


def test_a_line_that_ends_below_the_width_is_no_hypothesis():
    """Only the first `width` continuations may end: a worse one is there to go on, or not at all."""
    search = BeamSearch(1, 9, 2)
    search.offer(0, [(1, -0.5), (END, -0.6)])
    search.advance(lambda tokens: tokens[-1] == END)
    assert not search.hypotheses
    assert [beam.tokens for beam in search.beams] == [(1,)]


def event(index, token, logprob, finish=None, text="x"):
    return TokenEvent("r", index, (token,), text, (TokenLogprob(token, logprob),), finish=finish)


def test_a_ballot_elects_by_the_mean_and_ties_go_to_the_lower_number():
    ballot = Ballot(3, 2, logprobs=True)
    stop = FinishReason.STOP
    assert ballot.take(event(0, 1, -1.0)) == []
    assert ballot.take(event(1, 2, -1.5, stop)) == []
    assert ballot.take(event(0, 3, -2.0, stop)) == []
    answer = ballot.take(event(2, 4, -0.1, stop, text="y"))
    ballot.check()
    assert [(e.index, e.token_ids, e.text) for e in answer] == [(0, (4,), "y"), (1, (1, 3), "xx")]
    assert [entry.logprob for entry in answer[1].logprobs] == [-1.0, -2.0]
