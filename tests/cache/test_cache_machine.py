"""A stateful test of the cache's verbs: whatever is done in whatever order, reading through a page table gives back
what the sequence wrote, and pages are refused exactly when a brute-force count says that there are none.
"""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from pagoda.cache import KVCache

TOKENS = st.lists(st.integers(0, 2), min_size=1, max_size=9)


class CacheMachine(RuleBasedStateMachine):
    """`history` is the model: each sequence's tokens. `memory` simulates slots: each write leaves its whole prefix."""

    @initialize(
        page_size=st.sampled_from([1, 2, 4]), pages=st.lists(st.integers(1, 12), min_size=1, max_size=3), data=st.data()
    )
    def begin(self, page_size, pages, data):
        self.page_size, self.pages = page_size, pages
        self.cache = KVCache(pages, page_size)
        self.history: dict[int, tuple[int, ...]] = {}
        self.committed: dict[int, int] = {}
        self.memory: dict[tuple[int, int, int], tuple[int, ...]] = {}
        self.seen: dict[int, tuple[tuple[int, ...], ...]] = {}
        self.names = 0

    def pick(self, data):
        return data.draw(st.sampled_from(sorted(self.history)))

    @rule(tokens=TOKENS)
    def admit(self, tokens):
        cached = self.cache.admit(self.names, tokens)
        assert 0 <= cached <= len(tokens) - 1
        self.history[self.names] = tuple(tokens[:cached])
        self.committed[self.names] = cached
        self.names += 1

    def holders(self, group, page):
        return sum(page in self.cache.table(s)[group] for s in self.history)

    def wanted(self, group, sequence, start, upto):
        """Brute force, position by position: pages that writing start to upto - 1 takes from the free ones."""
        table = self.cache.table(sequence)[group]
        touched = {position // self.page_size for position in range(start, upto)}
        return sum(1 for i in touched if i >= len(table) or self.holders(group, table[i]) > 1)

    @precondition(lambda self: self.history)
    @rule(data=st.data(), tokens=TOKENS)
    def write(self, data, tokens):
        sequence = self.pick(data)
        history = self.history[sequence]
        start = data.draw(st.one_of(st.just(len(history)), st.integers(0, len(history))))
        upto = start + len(tokens)
        room = True
        for group, count in enumerate(self.pages):
            used = {page for s in self.history for page in self.cache.table(s)[group]}
            room &= self.wanted(group, sequence, start, upto) <= count - len(used)
        before = self.cache.table(sequence)
        extension = self.cache.extend(sequence, start, upto)
        assert extension.fits == room
        if not room:
            assert self.cache.table(sequence) is before
            assert not extension.copies
            return
        for copy in extension.copies:
            assert 0 < copy.slots <= self.page_size
            for slot in range(copy.slots):
                self.memory[copy.group, copy.target, slot] = self.memory[copy.group, copy.source, slot]
        self.history[sequence] = history[:start] + tuple(tokens)
        self.committed[sequence] = min(self.committed[sequence], start)
        for group, table in enumerate(self.cache.table(sequence)):
            for position in range(start, upto):
                page = table[position // self.page_size]
                assert self.holders(group, page) == 1, "a shared page is written to"
                self.memory[group, page, position % self.page_size] = self.history[sequence][: position + 1]

    @precondition(lambda self: self.history)
    @rule(data=st.data())
    def commit(self, data):
        sequence = self.pick(data)
        before = self.committed[sequence]
        upto = data.draw(st.integers(before, len(self.history[sequence])))
        self.cache.commit(sequence, self.history[sequence][before:upto])
        self.committed[sequence] = upto

    @precondition(lambda self: self.history)
    @rule(data=st.data())
    def fork(self, data):
        parent = self.pick(data)
        at = data.draw(st.integers(0, len(self.history[parent])))
        used = self.cache.used
        self.cache.fork(parent, self.names, at)
        assert self.cache.used == used, "a fork takes no page"
        self.history[self.names] = self.history[parent][:at]
        self.committed[self.names] = min(at, self.committed[parent])
        self.names += 1

    @precondition(lambda self: self.history)
    @rule(data=st.data())
    def release(self, data):
        sequence = self.pick(data)
        self.cache.release(sequence)
        del self.history[sequence], self.committed[sequence]

    @invariant()
    def reading_gives_back_what_was_written(self):
        for sequence, history in self.history.items():
            for group, table in enumerate(self.cache.table(sequence)):
                for position in range(len(history)):
                    page = table[position // self.page_size]
                    tag = self.memory[group, page, position % self.page_size]
                    assert tag == history[: position + 1], (sequence, group, position)

    @invariant()
    def counts_are_right(self):
        self.cache.check()
        used = [len({p for s in self.history for p in self.cache.table(s)[g]}) for g in range(len(self.pages))]
        assert self.cache.used == sum(used)
        assert self.cache.free == min(count - u for count, u in zip(self.pages, used, strict=True))
        for sequence in self.history:
            assert self.cache.committed(sequence) == self.committed[sequence]

    @invariant()
    def tables_stay_the_same_object(self):
        for sequence in self.history:
            table = self.cache.table(sequence)
            assert self.seen.get(sequence) != table or self.seen[sequence] is table
            self.seen[sequence] = table


CacheMachine.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestCacheMachine = CacheMachine.TestCase
