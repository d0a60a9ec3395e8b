"""Whatever is done, and whatever befalls the disk: a page that comes back is the one that was saved, under its own
tenant; exactly those come back that are on disk and sound; the budget is kept; nothing half written is ever used.
"""

from __future__ import annotations

import logging
import os
import random
import tempfile
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from .disk_model import DiskModel, Waiter, step

SHAPES = (
    ((12,), 2, 4),
    ((7, 9), 2, 2),
    ((20,), 2, 8),
    ((30,), 1, 6),
    ((9,), 4, 8),
    ((16, 11), 2, 4, (None, 5)),
    ((30, 20), 1, 6, (None, 6)),
)
"""Pages of each group, tokens of a page, tokens reserved beside pins, windows."""


@pytest.fixture(autouse=True, scope="module")
def quiet():
    """Thousands of faults are reported; nothing is synced, as no power fails here."""
    logging.disable(logging.ERROR)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda _: None)
        yield
    logging.disable(logging.NOTSET)


class DiskMachine(RuleBasedStateMachine):
    @initialize(
        page_size=st.sampled_from([1, 2, 2, 4]),
        pages=st.lists(st.integers(4, 12), min_size=1, max_size=2),
        window=st.none() | st.integers(1, 6),
        files=st.sampled_from([2, 5, 100]),
    )
    def begin(self, page_size, pages, window, files):
        self.folder = tempfile.TemporaryDirectory()
        self.model = DiskModel(Path(self.folder.name) / "kv", pages, page_size, 0, (None, window)[: len(pages)], files)

    def teardown(self):
        if hasattr(self, "model"):
            self.model.directory.close()
            self.folder.cleanup()

    def go(self, name, data):
        getattr(self.model, name)(lambda low, high: data.draw(st.integers(low, high)))

    @rule(data=st.data())
    def admit(self, data):
        self.go("admit" if len(self.model.lines) < 4 else "release", data)

    @precondition(lambda self: self.model.lines)
    @rule(data=st.data(), name=st.sampled_from(["write", "commit", "fork", "release"]))
    def line(self, data, name):
        self.go(name, data)

    @rule(data=st.data(), name=st.sampled_from(["pin", "unpin"]))
    def pins(self, data, name):
        self.go(name, data)

    @rule(data=st.data(), name=st.sampled_from(["look", "order", "step", "work", "clear"]))
    def disk(self, data, name):
        self.go(name, data)

    @rule(data=st.data(), name=st.sampled_from(["spoil", "fill", "lose_patience", "restart"]))
    def fault(self, data, name):
        self.go(name, data)

    @invariant()
    def all_is_as_brute_force_says(self):
        if hasattr(self, "model"):
            self.model.check()


DiskMachine.TestCase.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)
TestDiskMachine = DiskMachine.TestCase


def test_long_runs_agree_with_brute_force(tmp_path):
    """Few operations here; `disk_soak.py` does 100,000. Every kind of fault, of save and of restore is met."""
    met = Counter()
    for seed, shape in enumerate(SHAPES):
        model = DiskModel(tmp_path / str(seed), *shape, files=(4, 1000)[seed % 2])
        generator = random.Random(seed)
        for _ in range(300):
            step(model, generator.randint)
        model.directory.close()
        met.update(model.met)
    missing = {f"spoiled {kind}" for kind in range(7)} | {
        "saves",
        "loads",
        "restored",
        "bad files",
        "full",
        "restarts",
        "cleared",
    }
    assert missing <= set(met), f"the run never came upon {missing - set(met)}"


def test_a_restore_gives_up_when_what_it_follows_on_is_evicted(tmp_path):
    """Pages 2 and 3 are on their way; page 0 and 1, found in memory, go before they come."""
    model = DiskModel(tmp_path / "kv", (4,), 2, files=1000)
    whole = (0, 1, 1, 0, 0, 0, 1, 1, 0)

    def compute(name, tokens, upto):
        model.cache.admit(name, tokens)
        assert model.cache.extend(name, 0, upto).fits
        for position in range(upto):
            page = model.cache.table(name)[0][position // 2]
            model.memory[0, page, position % 2] = tokens[: position + 1]
        model.cache.commit(name, tokens[model.cache.committed(name) : upto])
        model.cache.release(name)

    compute(0, whole, 8)
    model.kept = model.strings()
    model.disk.found(model.cache.match("", whole))
    before = dict(model.memory)
    model.carry_out(before, model.disk.saves())
    model.settle()
    assert model.disk.report().units == 4
    while model.cache.idle > 2:
        assert model.cache._eviction.evict(model.cache.tree)
    match = model.cache.match("", whole)
    assert match.length == 4
    waiter = Waiter()
    model.waiters.append(waiter)
    assert model.disk.fetch(waiter, "", whole, match)
    while model.cache.idle:
        assert model.cache._eviction.evict(model.cache.tree)
    model.shelf.work()
    model.kept = set()
    assert model.plan() == (0, [waiter])
    model.disk.check()
    assert model.disk.report().units == 4
    model.directory.close()
