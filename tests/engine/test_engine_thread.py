"""The engine on its own thread: sinks, cancellation, overload, death, the watchdog, and closing."""

from __future__ import annotations

import logging
import threading
import time
from collections import defaultdict

import pytest

from pagoda.config import SchedulerConfig
from pagoda.engine import Engine
from pagoda.errors import EngineDied, InvalidRequest, Overloaded
from pagoda.obs.observer import NoObserver
from pagoda.types import FinishReason

from .fakes import FakeRunner, FakeTokenizer, GatedRunner, capacity, expected, request

CAPACITY = capacity((400,), 4, 400)


class Recorder:
    """A sink that can be waited for."""

    def __init__(self):
        self.events = []
        self.changed = threading.Condition()
        self.delay = 0.0

    def __call__(self, event):
        with self.changed:
            self.events.append(event)
            self.changed.notify_all()

    def wait(self, condition, timeout=20):
        with self.changed:
            assert self.changed.wait_for(lambda: condition(self.events), timeout), self.events

    def finals(self):
        counts = defaultdict(int)
        for event in self.events:
            assert not counts[event.request_id, event.index], "an event after the last one"
            counts[event.request_id, event.index] += event.finish is not None
        return [event for event in self.events if event.finish is not None]


class Watcher(NoObserver):
    def __init__(self):
        self.refusals, self.gaps, self.arrivals, self.states = [], [], [], []

    def arrived(self, request):
        self.arrivals.append(request.id)

    def refused(self, cause):
        self.refusals.append(cause)

    def emitted(self, event, gap):
        self.gaps.append(gap)

    def stepped(self, plan, result, state):
        assert plan.number == result.number
        self.states.append(state)


@pytest.fixture
def engines():
    """Makes engines, and closes them."""
    made = []

    def make(runner=None, observer=None, on_death=None, **config):
        runner = runner or FakeRunner(CAPACITY, config.get("chunk", 512))
        engine = Engine(runner, FakeTokenizer(), SchedulerConfig(**config), observer or NoObserver(), on_death)
        made.append((engine, runner))
        engine.start()
        return engine

    yield make
    for engine, runner in made:
        if isinstance(runner, GatedRunner):
            runner.gate.set()
        engine.close()


def test_many_threads_submit_and_each_gets_its_own(engines):
    watcher = Watcher()
    engine = engines(observer=watcher, max_num_seqs=8, chunk=16)
    recorders = [Recorder() for _ in range(24)]
    asks = [request(CAPACITY, (i % 9, 2), str(i), max_tokens=20, seed=i, n=1 + i % 2) for i in range(24)]

    def go(i):
        engine.submit(asks[i], recorders[i])

    threads = [threading.Thread(target=go, args=(i,)) for i in range(24)]
    for thread in threads:
        thread.start()
    for ask, recorder in zip(asks, recorders, strict=True):
        recorder.wait(lambda events, n=ask.params.n: sum(e.finish is not None for e in events) == n)
        assert len(recorder.finals()) == ask.params.n
        for index in range(ask.params.n):
            ids = [t for e in recorder.events if e.index == index for t in e.token_ids]
            assert ids == expected(ask.prompt, ask.params, index)[0]
    for thread in threads:
        thread.join()
    assert sorted(watcher.arrivals, key=int) == [str(i) for i in range(24)]
    tokens = sum(len(r.events) for r in recorders)
    assert len(watcher.gaps) == tokens
    assert watcher.gaps.count(None) == 36, "one first token of each sequence"
    assert all(gap is None or gap >= 0 for gap in watcher.gaps)
    assert engine.health().alive


def test_cancel_mid_stream_frees_the_pages(engines):
    engine = engines()
    recorder = Recorder()
    engine.submit(request(CAPACITY, max_tokens=390, ignore_eos=True, n=3), recorder)
    recorder.wait(lambda events: len(events) >= 5)
    engine.cancel("r")
    recorder.wait(lambda events: sum(e.finish is not None for e in events) == 3)
    assert {e.finish for e in recorder.finals()} <= {FinishReason.CANCELLED, FinishReason.LENGTH}
    engine.close(1)
    assert engine._roster.state().pages_used == 0
    engine._roster.check()


def test_cancel_of_the_unknown_and_the_ended_changes_nothing(engines):
    engine = engines()
    recorder = Recorder()
    engine.cancel("nobody")
    engine.submit(request(CAPACITY, max_tokens=1), recorder)
    recorder.wait(lambda events: events and events[-1].finish)
    engine.cancel("r")
    engine.submit(request(CAPACITY, request_id="s", max_tokens=3, ignore_eos=True), recorder)
    recorder.wait(lambda events: sum(e.finish is not None for e in events) == 2)
    assert [e.request_id for e in recorder.finals()] == ["r", "s"]


def test_a_token_in_flight_for_a_cancelled_request_is_dropped(engines):
    runner = GatedRunner(CAPACITY)
    engine = engines(runner)
    recorder, other = Recorder(), Recorder()
    engine.submit(request(CAPACITY, max_tokens=50, ignore_eos=True), recorder)
    assert runner.waits.wait(20)
    engine.cancel("r")
    engine.submit(request(CAPACITY, request_id="s", max_tokens=5, ignore_eos=True), other)
    runner.gate.set()
    other.wait(lambda events: events and events[-1].finish)
    (final,) = recorder.finals()
    assert (final.finish, final.timings is not None) == (FinishReason.CANCELLED, bool(final.completion_tokens))
    assert other.finals()[0].completion_tokens == 5


def test_the_queue_has_an_end(engines):
    runner, watcher = GatedRunner(CAPACITY), Watcher()
    engine = engines(runner, watcher, max_queued=2)
    recorder = Recorder()
    for name in "ab":
        engine.submit(request(CAPACITY, request_id=name, max_tokens=2), recorder)
    with pytest.raises(Overloaded, match="2 requests are under way, as many as max_queued allows"):
        engine.submit(request(CAPACITY, request_id="c", max_tokens=2), recorder)
    assert watcher.refusals == ["overloaded"]
    runner.gate.set()
    recorder.wait(lambda events: sum(e.finish is not None for e in events) == 2)
    engine.submit(request(CAPACITY, request_id="c", max_tokens=2), recorder)
    recorder.wait(lambda events: sum(e.finish is not None for e in events) == 3)


def test_two_open_requests_of_one_id_are_refused(engines):
    runner = GatedRunner(CAPACITY)
    engine = engines(runner)
    engine.submit(request(CAPACITY), Recorder())
    with pytest.raises(InvalidRequest, match="a request with id 'r' is under way"):
        engine.submit(request(CAPACITY), Recorder())


def test_a_sink_that_raises_loses_its_request_only(engines, caplog):
    engine = engines()
    recorder = Recorder()

    def broken(event):
        raise ValueError("the client's own")

    with caplog.at_level(logging.CRITICAL):
        engine.submit(request(CAPACITY, request_id="broken", max_tokens=300, ignore_eos=True), broken)
        engine.submit(request(CAPACITY, max_tokens=30, ignore_eos=True), recorder)
        recorder.wait(lambda events: events and events[-1].finish)
    assert engine.health().alive
    assert engine._requests.wait_for_none(20)


def test_a_runner_that_raises_ends_every_request_with_an_error(engines, caplog):
    runner, deaths, watcher = GatedRunner(CAPACITY), [], Watcher()
    runner.fault = MemoryError("page 7 is on fire")
    engine = engines(runner, watcher, deaths.append, max_num_seqs=2)
    recorder = Recorder()
    with caplog.at_level(logging.CRITICAL, logger="pagoda.engine.engine"):
        for i in range(5):
            engine.submit(request(CAPACITY, request_id=str(i), max_tokens=5, n=2), recorder)
        runner.gate.set()
        recorder.wait(lambda events: len(events) == 10)
        engine._thread.join(20)
    finals = recorder.finals()
    assert sorted((e.request_id, e.index) for e in finals) == [(str(i), j) for i in range(5) for j in range(2)]
    for event in finals:
        assert event.finish is FinishReason.ERROR
        assert isinstance(event.error, EngineDied)
        assert "page 7 is on fire" in str(event.error)
        assert event.prompt_tokens == 3
    assert [str(death) for death in deaths] == ["the engine stopped: MemoryError: page 7 is on fire"]
    assert isinstance(deaths[0].__cause__, MemoryError)
    health = engine.health()
    assert not health.alive
    assert "page 7" in health.reason
    with pytest.raises(EngineDied, match="page 7"):
        engine.submit(request(CAPACITY), recorder)
    assert watcher.refusals == ["engine_died"]


def test_the_watchdog_ends_what_hangs_and_the_thread_that_wakes_later_says_nothing(engines, caplog):
    runner, deaths = GatedRunner(CAPACITY), []
    engine = engines(runner, None, deaths.append, stall_s=0.2)
    recorder = Recorder()
    with caplog.at_level(logging.CRITICAL, logger="pagoda.engine.engine"):
        for i in range(3):
            engine.submit(request(CAPACITY, request_id=str(i), max_tokens=5), recorder)
        recorder.wait(lambda events: len(events) == 3)
    assert [e.finish for e in recorder.finals()] == [FinishReason.ERROR] * 3
    assert "no step was finished for 0.2 s" in str(recorder.events[0].error)
    assert not engine.health().alive
    runner.fault = ValueError("and then it fails as well")
    runner.gate.set()
    engine._thread.join(20)
    assert not engine._thread.is_alive()
    engine._watchdog._thread.join(20)
    assert len(recorder.events) == 3
    assert len(deaths) == 1


def test_the_watchdog_gets_by_a_sink_that_hangs(engines, caplog, monkeypatch):
    monkeypatch.setattr("pagoda.engine.open_requests.PATIENCE_S", 0.05)
    engine = engines(stall_s=0.2)
    release, recorder, hung = threading.Event(), Recorder(), Recorder()

    def hang(event):
        hung(event)
        if event.finish is None:
            release.wait(20)

    with caplog.at_level(logging.CRITICAL, logger="pagoda.engine.engine"):
        engine.submit(request(CAPACITY, request_id="hung", max_tokens=300, ignore_eos=True), hang)
        engine.submit(request(CAPACITY, request_id="other", max_tokens=300, ignore_eos=True), recorder)
        recorder.wait(lambda events: events and events[-1].finish)
        hung.wait(lambda events: events and events[-1].finish)
    release.set()
    engine._thread.join(20)
    assert [e.finish for e in recorder.finals() + hung.finals()] == [FinishReason.ERROR] * 2


def test_the_watchdog_sleeps_while_nothing_is_open(engines):
    engine = engines(stall_s=0.05)
    recorder = Recorder()
    for i in range(3):
        time.sleep(0.15)
        engine.submit(request(CAPACITY, request_id=str(i), max_tokens=2), recorder)
        recorder.wait(lambda events, i=i: sum(e.finish is not None for e in events) == i + 1)
    time.sleep(0.15)
    assert engine.health().alive


def test_close_drains_and_then_ends_the_rest(engines):
    engine = engines()
    short, long = Recorder(), Recorder()
    engine.submit(request(CAPACITY, request_id="short", max_tokens=5, ignore_eos=True), short)
    engine.close(drain_s=20)
    assert short.finals()[0].finish is FinishReason.LENGTH
    assert engine.health().reason == "the engine was closed"
    with pytest.raises(EngineDied, match="closed"):
        engine.submit(request(CAPACITY), short)

    runner = GatedRunner(CAPACITY)
    engine = engines(runner, stall_s=5)
    engine.submit(request(CAPACITY, request_id="long", max_tokens=5), long)
    assert runner.waits.wait(20)
    threading.Timer(0.2, runner.gate.set).start()
    engine.close(drain_s=0.05)
    assert long.finals()[0].finish is FinishReason.ERROR
    assert not engine._thread.is_alive()
    assert not runner.flights, "nothing is left half done with the runner"


def test_a_closing_engine_takes_no_more_and_finishes_what_it_has(engines):
    runner = GatedRunner(CAPACITY)
    engine = engines(runner)
    recorder = Recorder()
    engine.submit(request(CAPACITY, max_tokens=5, ignore_eos=True), recorder)
    closing = threading.Thread(target=engine.close, args=(20,))
    closing.start()
    while engine.health().alive:
        time.sleep(0.01)
    with pytest.raises(EngineDied, match="closed"):
        engine.submit(request(CAPACITY, request_id="late"), recorder)
    runner.gate.set()
    closing.join(20)
    assert recorder.finals()[0].finish is FinishReason.LENGTH
    assert len(recorder.events) == 5


def test_an_engine_that_was_not_started_is_not_alive():
    engine = Engine(FakeRunner(CAPACITY), FakeTokenizer())
    assert engine.health().reason == "the engine was not started"
    engine.close()


def test_an_idle_engine_uses_no_processor(engines):
    engine = engines()
    recorder = Recorder()
    engine.submit(request(CAPACITY, max_tokens=2), recorder)
    recorder.wait(lambda events: events and events[-1].finish)
    before = time.process_time()
    time.sleep(0.5)
    assert time.process_time() - before < 0.1
