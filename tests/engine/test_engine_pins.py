"""Pins: prefixes that are there for everyone, whatever else is evicted."""

from __future__ import annotations

import asyncio
from itertools import count

import pytest

from pagoda.config import SchedulerConfig
from pagoda.engine import Engine, stream
from pagoda.errors import EngineDied, InvalidRequest, MemoryLimit, TargetMissed
from pagoda.types import CacheCause, Slo

from .fakes import STOP, FakeRunner, FakeTokenizer, GatedRunner, capacity, expected, request

CAPACITY = capacity((20,), 4, 32)
SYSTEM = tuple((3 * i) % STOP for i in range(18))


class Driver:
    """An engine whose loop the test turns."""

    def __init__(self, capacity=CAPACITY, **config):
        self.capacity, self.names = capacity, count()
        self.runner = FakeRunner(capacity)
        self.engine = Engine(self.runner, FakeTokenizer(), SchedulerConfig(**config))

    def turn(self):
        while self.engine._orders or self.engine._roster.live or self.engine._flights:
            self.engine._take_orders()
            self.engine._step()
            self.engine._roster.check()

    def ask(self, prompt, tenant="", max_tokens=2, **params):
        events = []
        ask = request(self.capacity, prompt, str(next(self.names)), tenant=tenant, max_tokens=max_tokens, **params)
        self.engine.submit(ask, events.append)
        self.turn()
        tokens, text, reason = expected(ask.prompt, ask.params, 0)
        assert [t for e in events for t in e.token_ids] == tokens
        assert ("".join(e.text for e in events), events[-1].finish) == (text, reason)
        return events[-1]

    def pin(self, prompt, owner="", **options):
        pinned = self.engine.pin(prompt, owner, **options)
        self.turn()
        return pinned.result(0)

    def crowd(self):
        """So many other prompts that everything which can be evicted is."""
        for i in range(8):
            self.ask((i, i + 1, *[i] * 18), tenant=f"crowd {i}")


def test_a_pin_is_held_whole_and_found_by_every_tenant():
    """llama.cpp#26676: success is reported and nothing done. #28139: what is pinned is bypassed."""
    driver = Driver()
    pin = driver.pin(SYSTEM, "admin")
    assert (pin.owner, pin.tokens, pin.pages, pin.hits) == ("admin", 18, 5, 0)
    driver.crowd()
    assert driver.ask((*SYSTEM, 1, 2), "a").cached_tokens == 18
    assert driver.ask((*SYSTEM, 1, 2), "b").cached_tokens == 18, "the pin, and nothing of tenant a's"
    assert driver.ask((*SYSTEM, 1, 2), "a").cached_tokens == 19
    assert driver.ask(SYSTEM, "c").cached_tokens == 17
    assert [p.hits for p in driver.engine.list_pins()] == [3], "the last one used it all but a token"


def test_a_pin_that_is_not_shared_serves_its_owner_only():
    """Neither what is found nor what is counted tells one tenant of another."""
    driver = Driver()
    pin = driver.pin(SYSTEM, "a", shared=False, name="mine")
    assert (pin.shared, pin.name, pin.owner) == (False, "mine", "a")
    driver.crowd()
    event = driver.ask((*SYSTEM, 1, 2), "b")
    assert (event.cached_tokens, event.cache.cause, event.cache.instead) == (0, CacheCause.NEVER_SEEN, ())
    assert driver.ask((*SYSTEM, 1, 2), "b").cached_tokens == 19, "its own"
    assert driver.ask((*SYSTEM, 1, 2), "a").cached_tokens == 18
    assert [p.hits for p in driver.engine.list_pins()] == [1], "tenant b's are none of tenant a's affair"


def test_pins_of_one_prefix_come_and_go_by_themselves():
    driver = Driver()
    mine, everyones = driver.pin(SYSTEM, "a", shared=False), driver.pin(SYSTEM, "admin")
    driver.crowd()
    assert driver.ask((*SYSTEM, 1), "b").cached_tokens == 18
    driver.engine.unpin(everyones.id)
    driver.turn()
    driver.crowd()
    assert driver.ask((*SYSTEM, 1), "c").cached_tokens == 0
    assert driver.ask((*SYSTEM, 1), "a").cached_tokens == 18
    driver.engine.unpin(mine.id)
    driver.turn()
    driver.crowd()
    assert driver.ask((*SYSTEM, 1), "a").cached_tokens == 0


def test_clearing_leaves_pins_and_what_is_in_use():
    driver = Driver()
    driver.pin(SYSTEM, "admin")
    driver.ask((1,) * 9, "a")
    driver.engine.submit(request(CAPACITY, (2,) * 12, "open", max_tokens=2), lambda _: None)
    driver.engine._take_orders()
    driver.engine._step()
    driver.engine.clear_cache()
    driver.engine._take_orders()
    driver.engine._roster.check()
    report = driver.engine.cache_report()
    assert (report.cached, report.pinned) == (0, 5)
    assert report.used > 0
    driver.turn()
    event = driver.ask((1,) * 9, "a")
    assert (event.cached_tokens, event.cache.cause) == (0, CacheCause.EVICTED)
    assert driver.ask((*SYSTEM, 1), "b").cached_tokens == 18


def test_a_pin_costs_no_page_twice():
    driver = Driver()
    driver.pin(SYSTEM)
    assert driver.engine._roster.state().pages_used == 5
    driver.pin((*SYSTEM[:8], 1, 1))
    assert driver.engine._roster.state().pages_used == 6
    assert driver.pin(SYSTEM[:6]).pages == 2
    assert driver.engine._roster.state().pages_used == 6


def test_unpinned_pages_are_evicted_like_others():
    driver = Driver()
    pin = driver.pin(SYSTEM, "admin")
    assert driver.engine.unpin(pin.id)
    driver.turn()
    assert driver.engine.list_pins() == ()
    assert driver.ask(SYSTEM, "admin").cached_tokens == 17, "they stay while there is room"
    assert driver.ask(SYSTEM, "a").cached_tokens == 0, "for others they are as if they had never been"
    driver.crowd()
    event = driver.ask(SYSTEM, "admin")
    assert (event.cached_tokens, event.cache.cause) == (0, CacheCause.EVICTED)
    assert not driver.engine.unpin(pin.id)


def test_a_longer_pin_leaves_no_trace_on_a_shorter_one():
    driver = Driver()
    driver.pin(SYSTEM[:5], "admin")
    driver.engine.unpin(driver.pin(SYSTEM[:7], "admin").id)
    driver.turn()
    assert driver.ask(SYSTEM, "a").cached_tokens == 5


def test_pins_leave_room_for_the_longest_sequence():
    driver = Driver()
    for i in range(2):
        driver.pin((*[i] * 18,))
    with pytest.raises(
        MemoryLimit, match=r"18 tokens to pin need 5 KV pages of 4 tokens; of 20 pages 10 are pinned, and 8"
    ):
        driver.engine.pin(SYSTEM)
    assert driver.ask((7,) * 16, max_tokens=16, ignore_eos=True).completion_tokens == 16


def test_two_pins_at_once_cannot_take_too_much_together():
    driver = Driver()
    driver.pin((1,) * 18)
    both = [driver.engine.pin((i,) * 18) for i in (2, 3)]
    driver.turn()
    assert both[0].result(0).tokens == 18
    with pytest.raises(MemoryLimit, match="10 are pinned"):
        both[1].result(0)


@pytest.mark.parametrize(("prompt", "config"), [((), {}), ((1, 2), {"prefix_cache": False}), ((STOP + 1,), {})])
def test_what_cannot_be_pinned_is_refused(prompt, config):
    with pytest.raises(InvalidRequest):
        Driver(**config).engine.pin(prompt)


def test_a_pin_under_way_hears_of_the_end():
    engine = Engine(GatedRunner(CAPACITY), FakeTokenizer())
    engine.start()
    pinned = engine.pin(SYSTEM)
    engine._runner.waits.wait(20)
    engine._runner.gate.set()
    engine.close()
    if pinned.exception(20) is not None:  # else it was done first
        assert isinstance(pinned.exception(), EngineDied)
    with pytest.raises(EngineDied):
        engine.pin(SYSTEM)


def test_pinning_from_an_event_loop():
    engine = Engine(FakeRunner(CAPACITY), FakeTokenizer())
    engine.start()

    async def use():
        pin = await asyncio.wrap_future(engine.pin(SYSTEM))
        events = [e async for e in stream(engine, request(CAPACITY, SYSTEM, max_tokens=1))]
        return pin, events[-1].cached_tokens

    try:
        pin, found = asyncio.run(use())
        assert (pin.tokens, found) == (18, 17)
        assert engine.unpin(pin.id)
    finally:
        engine.close()


def test_the_report_says_what_each_page_is_for():
    driver = Driver()
    driver.pin(SYSTEM, "admin")
    driver.ask((1,) * 9, "a")
    driver.engine.submit(request(CAPACITY, (1,) * 12, "open", tenant="a", max_tokens=2), lambda _: None)
    driver.engine._take_orders()
    driver.engine._step()
    report = driver.engine.cache_report()
    assert (report.page_size, report.total) == (4, 20)
    assert report.used + report.pinned + report.cached + report.free == report.total
    (pages,) = report.maps
    assert {letter: pages.count(letter) for letter in "puscx."} == {"p": 5, "u": 0, "s": 3, "c": 1, "x": 0, ".": 11}
    assert report.pins == driver.engine.list_pins()
    driver.turn()
    assert driver.engine.cache_report().used == 0


def test_a_pin_is_never_too_late():
    """Targets are for those who wait for a token: a pin is computed whatever they are."""
    driver = Driver(ttft_target_ms=0.001)
    for _ in range(20):
        driver.ask((1, 2), slo=Slo(serve_late=True), max_tokens=3, ignore_eos=True)
    with pytest.raises(TargetMissed):
        driver.ask((1, 2))
    assert driver.pin(SYSTEM).tokens == len(SYSTEM)
