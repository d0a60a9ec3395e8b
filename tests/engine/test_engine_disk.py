"""The engine with a tier: whatever is saved, restored, spoiled or late, every output is that of its sequence alone, and
nobody is starved. The fake runner spells out what each slot holds, so a wrong page is seen at once.
"""

from __future__ import annotations

import logging
import os
import random
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pagoda.cache import Disk
from pagoda.cache.kv_dir import KVDir
from pagoda.cache.page_file import Seal
from pagoda.cache.shelf import PAGE, Shelf
from pagoda.config import SchedulerConfig
from pagoda.engine import Engine
from pagoda.types import DiskFault, FinishReason

from .fakes import STOP, FakeRunner, FakeTokenizer, capacity, expected, request
from .test_engine_traffic import ASKS, Traffic

LONG = tuple((7 * i) % STOP for i in range(41))


@pytest.fixture(autouse=True, scope="module")
def quiet():
    """Faults are reported, by the hundred; nothing is synced, as no power fails here."""
    logging.disable(logging.WARNING)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda _: None)
        yield
    logging.disable(logging.NOTSET)


class Tier:
    """What makes engines over one directory, without threads."""

    def __init__(self, path, budget=2**20, clock=lambda: 0.0):
        self.path, self.budget, self.clock = path, budget, clock

    @contextmanager
    def engine(self, runner, config, observer=None, key=None):
        directory = KVDir(self.path)
        self.shelf = runner.shelf = Shelf(directory, Seal(key or directory.key, "fake"), runner.capacity.unit_bytes)

        def open_disk(cache, wake):
            self.shelf.wake = wake
            self.disk = Disk(cache, self.shelf, self.budget, self.clock)
            return self.disk

        options = {} if observer is None else {"observer": observer}
        yield Engine(runner, FakeTokenizer(), config, open_disk=open_disk, **options)
        self.shelf.work()
        directory.close()

    def files(self):
        return sorted(self.path.glob(f"*{PAGE}"))


@dataclass
class DiskTraffic(Traffic):
    tier: Any = None
    seed: int = 0

    def open_engine(self, config):
        self.random = random.Random(self.seed)
        self.opened = self.tier.engine(self.runner, config, self.observer)
        return self.opened.__enter__()

    def between_steps(self):
        shelf = self.tier.shelf
        for _ in range(self.random.randint(1, 4)):
            work = [shelf._read_one, shelf._write_one]
            self.random.shuffle(work)
            if not (work[0]() or work[1]()):
                break
        self.tier.disk.check()

    def play(self, limit=5000):
        super().play(limit)
        self.between_steps()
        while self.tier.disk.busy:
            self.engine._take_orders()
            self.engine._step()
            self.tier.shelf.work()
        while self.engine._flights:
            self.engine._step()
        assert not self.tier.disk.restoring
        self.opened.__exit__(None, None, None)


@settings(max_examples=100, deadline=None)
@given(
    sessions=st.lists(st.lists(ASKS, min_size=1, max_size=6), min_size=1, max_size=3),
    pages=st.sampled_from([(26,), (30,), (64,), (26, 40)]),
    page_size=st.sampled_from([1, 2, 4]),
    chunk=st.sampled_from([2, 7, 64]),
    max_num_seqs=st.sampled_from([1, 3, 8]),
    steps=st.sampled_from([1, 2, 3]),
    files=st.sampled_from([3, 40, 1000]),
    seed=st.integers(0, 9),
    spoil=st.booleans(),
)
def test_outputs_are_the_same_over_restarts(sessions, pages, page_size, chunk, max_num_seqs, steps, files, seed, spoil):
    generator = random.Random(seed)
    with tempfile.TemporaryDirectory() as folder:
        tier = Tier(Path(folder) / "kv", files * 8192)
        for asks in sessions:
            traffic = DiskTraffic(asks, pages, page_size, chunk, max_num_seqs, steps, tier=tier, seed=seed)
            traffic.play()
            traffic.compare()
            for path in tier.files():
                if spoil and not generator.randint(0, 3):
                    raw = bytearray(path.read_bytes())
                    raw[generator.randrange(len(raw))] ^= 1 << generator.randint(0, 7)
                    path.write_bytes(raw)


@settings(max_examples=60, deadline=None)
@given(
    asks=st.lists(ASKS, min_size=4, max_size=10), pages=st.sampled_from([(7,), (8,), (9, 7)]), seed=st.integers(0, 99)
)
def test_outputs_are_the_same_when_pages_go_to_disk_and_back(asks, pages, seed):
    with tempfile.TemporaryDirectory() as folder:
        tier = Tier(Path(folder) / "kv")
        for _ in range(2):
            traffic = DiskTraffic(asks, pages, 4, 8, 8, 2, tier=tier, seed=seed)
            traffic.play()
            traffic.compare()


class Driver:
    """An engine whose loop the test turns; `session` is one process's life."""

    def __init__(self, path, pages=(64,), **tier):
        self.tier, self.capacity = Tier(path, **tier), capacity(pages, 4, 64)
        self.names = 0

    @contextmanager
    def session(self, orderly=True, **options):
        self.runner = FakeRunner(self.capacity)
        with self.tier.engine(self.runner, SchedulerConfig(), **options) as engine:
            self.engine = engine
            yield self
            self.turn()
            if orderly:
                while moves := self.rest():
                    engine._save(moves)
                    self.tier.shelf.work()

    def rest(self):
        disk = self.tier.disk
        disk._hear()
        disk._hot.update(dict.fromkeys(disk._latest()))
        return disk.saves()

    def turn(self, work=True):
        engine = self.engine
        while engine._orders or engine._roster.live or engine._flights or engine._disk.busy:
            engine._take_orders()
            engine._step()
            engine._roster.check()
            self.tier.disk.check()
            if work:
                self.tier.shelf.work()

    def submit(self, prompt, tenant="", max_tokens=2):
        events, self.names = [], self.names + 1
        ask = request(self.capacity, prompt, str(self.names), tenant=tenant, max_tokens=max_tokens, ignore_eos=True)
        self.engine.submit(ask, events.append)
        return ask, events

    def ask(self, prompt, tenant="", max_tokens=2):
        ask, events = self.submit(prompt, tenant, max_tokens)
        self.turn()
        return self.end(ask, events)

    def end(self, ask, events):
        assert [t for e in events for t in e.token_ids] == expected(ask.prompt, ask.params, 0)[0]
        return events[-1]

    def pins(self):
        return {(pin.id, pin.owner, pin.shared, pin.name, pin.tokens) for pin in self.engine.list_pins()}

    @property
    def report(self):
        return self.engine.cache_report().disk


def test_a_restart_is_warm(tmp_path):
    driver = Driver(tmp_path / "kv")
    with driver.session():
        assert driver.ask(LONG).cached_tokens == 0
    with driver.session():
        assert driver.ask(LONG).cached_tokens == 40
        assert driver.report.restored == 10
        assert driver.report.units == 10
    assert driver.runner.rows == 2


def test_a_crash_keeps_what_is_hot(tmp_path):
    driver = Driver(tmp_path / "kv")
    with driver.session(orderly=False):
        driver.ask(LONG)
        driver.ask((*LONG[:16], 1, 2, 3))
    assert len(driver.tier.files()) == 4, "what was found a second time, and nothing else"
    with driver.session():
        assert driver.ask(LONG).cached_tokens == 16


def test_what_is_evicted_comes_back(tmp_path):
    driver = Driver(tmp_path / "kv", (20,))
    with driver.session():
        driver.ask(LONG, "a")
        for i in range(4):
            driver.ask((i, i, *LONG[:38]), "b")
        assert driver.report.saved >= 10
        assert driver.ask(LONG, "a").cached_tokens == 40
        assert driver.report.restored == 10


def test_nothing_crosses_tenants(tmp_path):
    driver = Driver(tmp_path / "kv")
    with driver.session():
        driver.ask(LONG, "a")
    with driver.session():
        assert driver.ask(LONG, "b").cached_tokens == 0
        assert driver.ask(LONG, "").cached_tokens == 0
        assert driver.report.restored == 0
        assert driver.ask(LONG, "a").cached_tokens == 40


def test_a_pin_comes_back_pinned_with_its_number_owner_name_and_reach(tmp_path):
    driver = Driver(tmp_path / "kv")
    with driver.session(orderly=False):
        first = driver.engine.pin(LONG[:18], "admin", shared=True, name="first")
        second = driver.engine.pin(LONG[3:9], "other", shared=False, name="second")
        driver.turn()
        driver.engine.unpin(first.result(0).id)
        third = driver.engine.pin(LONG[:22], "admin", shared=True, name="third")
        driver.turn()
        kept = driver.pins()
        assert {pin[0] for pin in kept} == {second.result(0).id, third.result(0).id}
    with driver.session(orderly=False):
        again = driver.engine.pin_again()
        driver.turn()
        assert all(pin.done() for pin in again)
        assert driver.pins() == kept
        assert driver.report.restored == 6, "whole pages are read, the rest is computed"
        assert driver.ask(LONG, "anyone").cached_tokens == 22
        assert driver.ask((*LONG[3:9], 1), "anyone").cached_tokens == 0, "it is the other's own"
        assert driver.ask((*LONG[3:9], 1), "other").cached_tokens == 6
        driver.engine.pin(LONG[20:26], "admin", shared=True)
        driver.turn()
        assert max(pin[0] for pin in driver.pins()) > max(pin[0] for pin in kept)
    with driver.session():
        driver.engine.pin_again()
        driver.turn()
        for pin in driver.engine.list_pins():
            driver.engine.unpin(pin.id)
        driver.turn()
    with driver.session():
        assert driver.engine.pin_again() == [], "what was unpinned stays unpinned"


def test_clearing_the_cache_clears_the_disk_of_all_but_pins(tmp_path):
    driver = Driver(tmp_path / "kv")
    with driver.session():
        driver.engine.pin(LONG[:8], "a", shared=True)
        driver.ask(LONG, "a")
        driver.ask(LONG, "a")
        assert len(driver.tier.files()) == 10
        driver.engine.clear_cache()
        driver.turn()
        assert len(driver.tier.files()) == 2
        assert driver.ask(LONG, "a").cached_tokens == 8


def test_a_pin_whose_files_are_damaged_is_computed_and_pinned(tmp_path):
    driver = Driver(tmp_path / "kv")
    with driver.session(orderly=False):
        driver.engine.pin(LONG, "admin", shared=True)
        driver.turn()
    for path in driver.tier.files():
        path.write_bytes(path.read_bytes()[:-1])
    with driver.session():
        (again,) = driver.engine.pin_again()
        driver.turn()
        assert again.result(0).tokens == len(LONG)
        assert dict(driver.report.faults) == {DiskFault.TRUNCATED: 10}
        assert driver.report.units == 10, "they were written anew"


@pytest.mark.parametrize("at", [0, 4, 9])
def test_a_damaged_page_is_told_and_computed(tmp_path, at):
    driver = Driver(tmp_path / "kv")
    with driver.session():
        driver.ask(LONG)
    with driver.session():
        pages = driver.tier.disk._names.pages("", LONG[:40])
        path = driver.tier.path / (pages[at].name.hex() + PAGE)
        raw = bytearray(path.read_bytes())
        raw[-40] ^= 4
        path.write_bytes(raw)
        assert driver.ask(LONG).cached_tokens == 4 * at
        assert dict(driver.report.faults) == {DiskFault.DAMAGED: 1}
        assert driver.ask(LONG).cached_tokens == 40
    assert path.exists(), "and written anew"


def test_another_key_or_another_model_finds_nothing(tmp_path):
    driver = Driver(tmp_path / "kv")
    with driver.session():
        driver.ask(LONG)
    with driver.session(key=bytes(32), orderly=False):
        assert driver.ask(LONG).cached_tokens == 0
        assert dict(driver.report.faults) == {DiskFault.WRONG_KEY: 10}
        assert driver.report.units == 0
    with driver.session():
        assert driver.ask(LONG).cached_tokens == 40, "their files were left alone"


def test_others_go_on_while_pages_are_read(tmp_path):
    driver = Driver(tmp_path / "kv")
    with driver.session():
        driver.ask(LONG)
    with driver.session():
        waits = driver.submit(LONG)
        driver.engine._take_orders()
        driver.engine._step()
        assert driver.tier.disk.restoring == 1
        other = driver.submit((1, 2, 3), max_tokens=9)
        for _ in range(12):
            driver.engine._take_orders()
            driver.engine._step()
        assert driver.end(*other).finish is FinishReason.LENGTH
        assert not waits[1]
        driver.turn()
        assert driver.end(*waits).cached_tokens == 40


def test_a_disk_that_hangs_is_not_waited_for(tmp_path):
    now = [0.0]
    driver = Driver(tmp_path / "kv", clock=lambda: now[0])
    with driver.session():
        driver.ask(LONG)
    with driver.session():
        waits = driver.submit(LONG)
        driver.engine._take_orders()
        driver.engine._step()
        now[0] = 60.0
        driver.turn(work=False)
        assert driver.end(*waits).cached_tokens == 0
        assert dict(driver.report.faults) == {DiskFault.SLOW: 1}


def test_who_leaves_while_pages_are_read_is_gone(tmp_path):
    driver = Driver(tmp_path / "kv")
    with driver.session():
        driver.ask(LONG)
    with driver.session():
        _, events = driver.submit(LONG)
        driver.engine._take_orders()
        driver.engine._step()
        driver.engine.cancel(str(driver.names))
        driver.turn()
        assert [e.finish for e in events] == [FinishReason.CANCELLED]
        assert driver.ask(LONG).cached_tokens == 40


def test_many_at_once_share_one_reading(tmp_path):
    driver = Driver(tmp_path / "kv")
    with driver.session():
        driver.ask(LONG[:33])
        driver.ask(LONG)
    with driver.session():
        asked = [driver.submit((*LONG[: 20 + 4 * i], 1, 2)) for i in range(5)]
        driver.turn()
        assert [driver.end(*each).cached_tokens for each in asked] == [20, 24, 28, 32, 36]
        assert driver.report.restored == 9, "each page is read once"


def test_it_is_computed_when_that_is_faster(tmp_path):
    driver = Driver(tmp_path / "kv")
    with driver.session():
        driver.ask(LONG)
    with driver.session():
        driver.tier.disk._tier.reading.add(1, 1.0)
        driver.tier.disk.measure(0.001)
        assert driver.ask(LONG).cached_tokens == 0
        assert driver.report.restored == 0


def test_a_tier_needs_no_room_that_others_need(tmp_path):
    """A pool just large enough for one sequence: a restore takes pages only while nobody else wants them."""
    driver = Driver(tmp_path / "kv", (16,))
    with driver.session():
        driver.ask(LONG)
        asked = [driver.submit((*LONG[:n], 5), max_tokens=20) for n in (40, 41, 12, 36)]
        driver.turn()
        for each in asked:
            driver.end(*each)


def test_a_smaller_budget_is_kept_from_the_start(tmp_path):
    driver = Driver(tmp_path / "kv")
    with driver.session():
        driver.ask(LONG)
    assert len(driver.tier.files()) == 10
    driver.tier.budget = 4 * 8192
    with driver.session(orderly=False):
        driver.tier.shelf.work()
        assert len(driver.tier.files()) == 4
        assert driver.ask(LONG).cached_tokens == 16, "the beginnings stay"
