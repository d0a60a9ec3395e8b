"""Iterators over events: asyncio and plain, left early, many at once, and one wake-up a step."""

from __future__ import annotations

import asyncio
import gc
import signal
import threading
from collections import defaultdict

import pytest

from pagoda.config import SchedulerConfig
from pagoda.engine import Engine, iterate, stream
from pagoda.engine.streams import _mailboxes
from pagoda.errors import EngineDied, Overloaded
from pagoda.types import FinishReason

from .fakes import FakeRunner, FakeTokenizer, GatedRunner, capacity, expected, request

CAPACITY = capacity((400,), 4, 400)


@pytest.fixture
def engine():
    engine = Engine(FakeRunner(CAPACITY), FakeTokenizer(), SchedulerConfig(max_queued=16))
    engine.start()
    yield engine
    engine.close()


def settled(engine):
    """Whether everything was given back."""
    return engine._requests.wait_for_none(20)


def test_thirty_streams_at_once_get_what_is_theirs():
    async def collect(engine, ask):
        lines = defaultdict(list)
        async for event in stream(engine, ask):
            lines[event.index].extend(event.token_ids)
        return lines

    async def main(engine):
        asks = [request(CAPACITY, (i % 9, 1), str(i), max_tokens=30, seed=i, n=1 + i % 3) for i in range(30)]
        for ask, lines in zip(asks, await asyncio.gather(*(collect(engine, a) for a in asks)), strict=True):
            for index in range(ask.params.n):
                assert lines[index] == expected(ask.prompt, ask.params, index)[0]

    engine = Engine(FakeRunner(CAPACITY), FakeTokenizer())
    engine.start()
    asyncio.run(main(engine))
    engine.close()
    gc.collect()
    assert not _mailboxes, "a loop that is gone keeps no mailbox"


def test_the_events_of_a_step_wake_the_loop_once():
    """Eight streams of 20 tokens: the loop is woken once a step that has events, not once an event."""
    runner = GatedRunner(CAPACITY, max_num_seqs=8)
    engine = Engine(runner, FakeTokenizer(), SchedulerConfig(max_num_seqs=8))

    async def main():
        loop = asyncio.get_running_loop()
        wakes, call = [], loop.call_soon_threadsafe
        streams = [
            stream(engine, request(CAPACITY, request_id=str(i), max_tokens=20, ignore_eos=True)) for i in range(8)
        ]
        engine.start()
        loop.call_soon_threadsafe = lambda *args: (wakes.append(1), call(*args))
        runner.gate.set()
        events = 0
        for each in streams:
            async for _ in each:
                events += 1
        assert events == 160
        sampling = [plan for plan in runner.plans if any(chunk.samples for chunk in plan.chunks)]
        assert len(wakes) == len(sampling) == 20

    asyncio.run(main())
    engine.close()


def test_closing_a_stream_cancels(engine):
    async def main():
        events = stream(engine, request(CAPACITY, max_tokens=390, ignore_eos=True))
        async for _ in events:
            break
        await events.aclose()
        assert [event async for event in events] == []

    asyncio.run(main())
    assert settled(engine)


def test_dropping_a_stream_cancels(engine):
    async def main():
        stream(engine, request(CAPACITY, max_tokens=390, ignore_eos=True))

    asyncio.run(main())
    gc.collect()
    assert settled(engine)


def test_cancelling_the_task_that_waits_cancels_the_request():
    runner = GatedRunner(CAPACITY)
    engine = Engine(runner, FakeTokenizer())
    engine.start()

    async def main():
        events = stream(engine, request(CAPACITY, max_tokens=390, ignore_eos=True))
        task = asyncio.ensure_future(anext(events))
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        runner.gate.set()
        assert await asyncio.to_thread(settled, engine)
        assert len(runner.plans) <= 4

    asyncio.run(main())
    engine.close()


def test_a_stream_is_refused_before_it_is_iterated(engine):
    engine.close()

    async def main():
        stream(engine, request(CAPACITY))

    with pytest.raises(EngineDied, match="closed"):
        asyncio.run(main())


def test_a_loop_that_was_closed_does_not_hurt_the_engine(engine):
    kept = []

    async def main():
        kept.append(stream(engine, request(CAPACITY, max_tokens=390, ignore_eos=True)))

    asyncio.run(main())
    assert settled(engine)
    assert engine.health().alive


def test_iterate_takes_more_requests_than_the_queue_holds(engine):
    asks = [request(CAPACITY, (i % 9, 1), str(i), max_tokens=12, seed=i, n=1 + i % 2) for i in range(50)]
    lines = defaultdict(list)
    for event in iterate(engine, iter(asks)):
        lines[event.request_id, event.index].extend(event.token_ids)
    assert len(lines) == 75
    for ask in asks:
        for index in range(ask.params.n):
            assert lines[ask.id, index] == expected(ask.prompt, ask.params, index)[0]


def test_iterate_left_early_cancels(engine):
    asks = [request(CAPACITY, request_id=str(i), max_tokens=390, ignore_eos=True) for i in range(40)]
    events = iterate(engine, asks)
    for _ in range(10):
        next(events)
    events.close()
    assert settled(engine)


def test_an_interrupt_while_iterating_cancels(engine):
    def interrupted():
        for _ in iterate(engine, [request(CAPACITY, max_tokens=390, ignore_eos=True)]):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    gc.collect()
    assert settled(engine)


def test_ctrl_c_while_nothing_comes_cancels():
    runner = GatedRunner(CAPACITY)
    engine = Engine(runner, FakeTokenizer())
    engine.start()
    threading.Timer(0.2, signal.pthread_kill, (threading.main_thread().ident, signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        next(iterate(engine, [request(CAPACITY, max_tokens=390, ignore_eos=True)]))
    runner.gate.set()
    assert settled(engine)
    assert len(runner.plans) <= 4
    engine.close()


def test_iterate_raises_when_others_fill_the_queue():
    runner = GatedRunner(CAPACITY)
    engine = Engine(runner, FakeTokenizer(), SchedulerConfig(max_queued=1))
    engine.submit(request(CAPACITY, request_id="other"), [].append)
    with pytest.raises(Overloaded):
        next(iterate(engine, [request(CAPACITY)]))
    engine.close()


def test_iterate_ends_when_the_engine_dies(caplog):
    runner = GatedRunner(CAPACITY)
    runner.fault = ValueError("broken")
    runner.gate.set()
    engine = Engine(runner, FakeTokenizer())
    engine.start()
    events = list(iterate(engine, [request(CAPACITY, n=2)]))
    assert [event.finish for event in events] == [FinishReason.ERROR] * 2
    assert list(iterate(engine, [])) == []
