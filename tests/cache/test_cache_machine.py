"""Whatever is done in whatever order: a match is the longest common prefix of all strings kept, reading through a page
table gives back what the sequence wrote, and pages are refused exactly when a brute-force count says there are none.
"""

from __future__ import annotations

import os

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from .model import Model
from .soak import soak


class CacheMachine(RuleBasedStateMachine):
    @initialize(
        page_size=st.sampled_from([1, 2, 4]),
        pages=st.lists(st.integers(1, 12), min_size=1, max_size=3),
        reserve=st.integers(0, 6),
        windows=st.lists(st.none() | st.integers(1, 7), min_size=2, max_size=2),
    )
    def begin(self, page_size, pages, reserve, windows):
        self.model = Model(pages, page_size, reserve, (None, *windows)[: len(pages)])

    @rule(data=st.data())
    def admit(self, data):
        self.go("admit", data)

    @precondition(lambda self: self.model.lines)
    @rule(data=st.data())
    def write(self, data):
        self.go("write", data)

    @precondition(lambda self: self.model.lines)
    @rule(data=st.data())
    def commit(self, data):
        self.go("commit", data)

    @precondition(lambda self: self.model.lines)
    @rule(data=st.data())
    def slide(self, data):
        self.go("slide", data)

    @precondition(lambda self: self.model.lines)
    @rule(data=st.data())
    def fork(self, data):
        self.go("fork", data)

    @precondition(lambda self: self.model.lines)
    @rule(data=st.data())
    def beams(self, data):
        self.go("beams", data)

    @precondition(lambda self: self.model.lines)
    @rule(data=st.data())
    def tree(self, data):
        self.go("tree", data)

    @precondition(lambda self: self.model.lines)
    @rule(data=st.data())
    def release(self, data):
        self.go("release", data)

    @precondition(lambda self: self.model.kept)
    @rule(data=st.data())
    def pin(self, data):
        self.go("pin", data)

    @precondition(lambda self: self.model.pins)
    @rule(data=st.data())
    def unpin(self, data):
        self.go("unpin", data)

    @rule(data=st.data())
    def clear(self, data):
        self.go("clear", data)

    def go(self, name, data):
        getattr(self.model, name)(lambda low, high: data.draw(st.integers(low, high)))

    @invariant()
    def all_is_as_brute_force_says(self):
        if hasattr(self, "model"):
            self.model.check()


CacheMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestCacheMachine = CacheMachine.TestCase


OPERATIONS = int(os.environ.get("CACHE_OPERATIONS", "4000"))
"""In all; 100,000 shows what is promised, and takes some minutes."""


@pytest.mark.timeout(7200)
def test_long_runs_agree_with_brute_force():
    met = soak(OPERATIONS, seed=8)
    missing = {name for name, count in met.items() if not count and name != "off"}
    assert not missing, f"the runs never came upon {missing}"
