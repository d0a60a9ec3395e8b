"""Ends that are not the model's: loops, and a server that stops."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagoda.config import SchedulerConfig
from pagoda.engine import Engine
from pagoda.engine.repetition import LEAST_TOKENS, LONGEST, Loop
from pagoda.errors import EngineDied, InvalidRequest
from pagoda.types import FinishReason, SamplingParams

from .fakes import FakeTokenizer, GatedRunner, capacity, request
from .test_engine_parts import feed
from .test_engine_thread import Recorder


def loops(output, times):
    """By the definition: some run of up to LONGEST tokens ends the output, `times` over and for LEAST_TOKENS tokens."""
    for length in range(1, LONGEST + 1):
        tail = max(length * times, LEAST_TOKENS)
        if len(output) >= tail and all(output[-i] == output[-i - length] for i in range(1, tail - length + 1)):
            return True
    return False


@given(
    st.lists(st.integers(0, 2), max_size=20),
    st.lists(st.integers(0, 2), min_size=1, max_size=12),
    st.integers(1, 8),
    st.integers(3, 5),
)
def test_loops_are_those_of_the_definition(before, run, rounds, times):
    loop, output = Loop(times), []
    for token in before + run * rounds:
        output.append(token)
        assert loop.closes(output) == loops(output, times)


def test_a_loop_ends_the_output_if_that_was_asked_for():
    tokens = [0, 1, 4] + [6, 2] * 30
    for times in (3, 12):
        events = feed(tokens[: 3 + max(2 * times, LEAST_TOKENS)], max_tokens=60, repetition_stop=times)
        assert [event.finish for event in events[:-1]] == [None] * (len(events) - 1)
        assert events[-1].finish is FinishReason.REPETITION
        assert "".join(event.text for event in events).endswith("c abc ab")
    assert feed(tokens[:50], max_tokens=60)[-1].finish is None


def test_the_length_is_the_reason_if_both_come_at_once():
    assert feed([1] * 16, max_tokens=16, repetition_stop=3)[-1].finish is FinishReason.LENGTH


@pytest.mark.parametrize("times", [-1, 1, 2, 1.5, True])
def test_bad_repetition_stops(times):
    with pytest.raises(InvalidRequest, match="repetition_stop"):
        SamplingParams(repetition_stop=times)


@pytest.mark.parametrize(("drain", "reason"), [(0.3, FinishReason.SHUTDOWN), (0.0, FinishReason.ERROR)])
def test_closing_ends_what_was_begun_and_what_was_not(drain, reason):
    room = capacity((400,), 4, 400)
    runner = GatedRunner(room, 512)
    engine = Engine(runner, FakeTokenizer(), SchedulerConfig(max_num_seqs=1))
    begun, waiting = Recorder(), Recorder()
    engine.submit(request(room, request_id="a", max_tokens=300, ignore_eos=True), begun)
    engine.submit(request(room, request_id="b", max_tokens=5), waiting)
    finish = runner.finish

    def slowly(handle):
        time.sleep(0.02)
        return finish(handle)

    runner.finish = slowly
    runner.gate.set()
    engine.start()
    begun.wait(lambda events: len(events) >= 2)
    engine.close(drain)
    (end,) = begun.finals()
    assert end.finish is reason
    assert end.completion_tokens >= len(begun.events) - 1
    assert (end.error is None) == (reason is FinishReason.SHUTDOWN)
    (end,) = waiting.finals()
    assert end.finish is FinishReason.ERROR
    assert isinstance(end.error, EngineDied)
