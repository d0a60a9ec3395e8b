"""The control room under random traffic, against brute force: whatever the chunk, the number of sequences, the pages,
the steps in flight and the cancellations, every sequence's tokens and text are those it gets alone.

Here the engine's thread is not started: the loop's functions are called one by one, and every structure is checked in
between. The fake runner asserts every promise of a plan.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pagoda.backends.texts import NativeTexts
from pagoda.config import SchedulerConfig
from pagoda.engine import Engine
from pagoda.engine.speculation import Controller, NgramDrafter
from pagoda.obs.observer import NoObserver
from pagoda.types import CacheCause, FinishReason, Slo

from .fakes import STOP, FakeRunner, FakeTokenizer, Oracle, capacity, expected, grove, request

NO_TARGETS = Slo()


class Counting(NoObserver):
    def __init__(self):
        self.preemptions = 0
        self.victims = []
        self.matches = {}

    def preempted(self, request_id):
        self.preemptions += 1
        self.victims.append(request_id)

    def matched(self, request, found, cause):
        assert request.id not in self.matches, "a request is matched once"
        self.matches[request.id] = found, cause


@dataclass
class Ask:
    """One request of the traffic."""

    prompt: tuple[int, ...]
    max_tokens: int
    n: int = 1
    seed: int = 0
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False
    at: int = 0
    cancel_after: int | None = None
    tenant: str = ""
    slo: Slo = NO_TARGETS
    priority: int = 0


@dataclass
class Traffic:
    """Plays asks against an engine, loop by loop."""

    asks: list[Ask]
    pages: tuple[int, ...] = (64,)
    page_size: int = 4
    chunk: int | None = 8
    max_num_seqs: int = 4
    steps_in_flight: int = 2
    max_model_len: int = 64
    prefix_cache: bool = True
    drafters: tuple = ()
    short: int = 0
    """Whether who comes in is always the youngest."""
    events: dict = field(default_factory=lambda: defaultdict(list))

    def play(self, limit=5000):
        self.capacity = capacity(self.pages, self.page_size, self.max_model_len)
        self.runner = FakeRunner(self.capacity, self.chunk or 512, self.max_num_seqs, self.steps_in_flight)
        self.observer = Counting()
        config = SchedulerConfig(self.max_num_seqs, self.chunk, self.steps_in_flight, prefix_cache=self.prefix_cache)
        self.drafts = Controller([drafter() for drafter in self.drafters], always=True)
        self.engine = engine = self.open_engine(config)
        self.requests = [
            request(self.capacity, a.prompt, str(i), tenant=a.tenant, **self.params(a)) for i, a in enumerate(self.asks)
        ]
        last = max(a.at + (a.cancel_after or 0) for a in self.asks)
        for step in range(limit):
            for ask, req in zip(self.asks, self.requests, strict=True):
                if ask.at == step:
                    engine.submit(req, lambda event: self.events[event.request_id, event.index].append(event))
                if ask.cancel_after is not None and ask.at + ask.cancel_after == step:
                    engine.cancel(req.id)
            roster = engine._roster
            self.between_steps()
            if engine._orders or roster.live or engine._flights or engine._disk.busy:
                engine._take_orders()
                for ask, req in zip(self.asks, self.requests, strict=True):
                    if ask.cancel_after is not None and ask.at + ask.cancel_after == step:
                        assert all(s.state.request.id != req.id for s in roster.live.values()), "pages are not free"
                roster.check()
                due, plans = {s.id: s.due() for s in roster.running}, len(self.runner.plans)
                engine._step()
                roster.check()
                self.drafts.check()
                if len(self.runner.plans) > plans:
                    self.look_at(due, self.runner.plans[-1])
            elif step > last:
                break
        else:
            pytest.fail("a request is starved")
        assert not len(engine._requests)
        assert roster.state().pages_used == 0
        assert not self.runner.flights

    def open_engine(self, config):
        return Engine(self.runner, FakeTokenizer(), config, self.observer, speculation=self.drafts)

    def between_steps(self):
        """What happens elsewhere meanwhile."""

    def params(self, ask):
        return {
            "max_tokens": ask.max_tokens, "n": ask.n, "seed": ask.seed, "stop": ask.stop, "ignore_eos": ask.ignore_eos,
            "logprobs": 0, "slo": ask.slo, "priority": ask.priority,
        }  # fmt: skip

    def in_turn(self, sequence):
        """Whether it has a chunk as soon as it has pages."""
        return True

    def look_at(self, due, plan):
        """What one plan owes those that ran before it and those that it admits."""
        placed = {chunk.sequence: len(chunk.tokens) for chunk in plan.chunks}
        admitted = placed.keys() - due.keys()
        running = [s.id for s in self.engine._roster.running]
        assert len(running) <= self.max_num_seqs
        new = {s.id for s in self.engine._roster.running if self.in_turn(s)} - due.keys()
        assert new <= admitted, "who is admitted gets a chunk at once"
        live = self.engine._roster.live
        short = [s for s, tokens in due.items() if tokens == 1 and s not in placed and s in live]
        self.short += len(short)
        assert not (short and admitted), "a newcomer takes what one that runs is short of"
        assert not short or self.engine._scheduler._by_age, "it is short, and the next step does not go by age"
        if self.chunk is None:
            assert plan.rows <= 512

    def compare(self):
        for ask, req in zip(self.asks, self.requests, strict=True):
            for index in range(ask.n):
                events = self.events[req.id, index]
                assert [e.finish for e in events[:-1]] == [None] * (len(events) - 1)
                final = events[-1]
                ids = [token for e in events for token in e.token_ids]
                text = "".join(e.text for e in events)
                tokens, whole, reason = expected(req.prompt, req.params, index)
                assert final.prompt_tokens == len(req.prompt)
                assert final.completion_tokens == len(ids)
                assert final.cached_tokens <= len(req.prompt) - 1
                if req.id in self.observer.matches:
                    found, cause = self.observer.matches[req.id]
                    assert final.cache.matched == final.cached_tokens == found
                    assert final.cache.cause is not CacheCause.OTHER_KEY, "a client is told of others"
                    assert final.cache.cause is cause or cause is CacheCause.OTHER_KEY
                assert [lp.token_id for e in events for lp in e.logprobs] == ids
                if final.finish is FinishReason.CANCELLED:
                    assert ask.cancel_after is not None
                    assert ids == tokens[: len(ids)]
                    assert whole.startswith(text)
                else:
                    assert (ids, text, final.finish) == (tokens, whole, reason)
                    assert final.timings is not None
                    assert final.timings.queued <= final.timings.first_token <= final.timings.total


ASKS = st.builds(
    Ask,
    prompt=st.one_of(
        st.lists(st.integers(0, STOP - 1), min_size=1, max_size=14),
        st.integers(1, 14).flatmap(lambda n: st.sampled_from([[1, 2] * n, [1] * n, [3, *range(9)][:n] + [1] * 3])),
    ).map(lambda prompt: tuple(prompt[:14])),
    max_tokens=st.integers(1, 12),
    n=st.sampled_from([1, 1, 1, 2, 3, 5]),
    seed=st.integers(0, 5),
    stop=st.sampled_from([(), (), ("aba",), ("é", "bab"), ("\ufffd",), ("ba", "abab")]),
    ignore_eos=st.booleans(),
    at=st.integers(0, 12),
    cancel_after=st.one_of(st.none(), st.none(), st.integers(0, 12)),
    tenant=st.sampled_from(["", "", "other"]),
    slo=st.sampled_from([Slo(), Slo(), Slo(1, serve_late=True), Slo(3000, 20, serve_late=True)]),
    priority=st.sampled_from([0, 0, 3, -10]),
)


def _ngrams() -> NgramDrafter:
    return NgramDrafter(NativeTexts())


DRAFTERS = st.sampled_from([(), (Oracle,), (_ngrams,), (_ngrams, Oracle), (grove,), (grove,)])


@settings(max_examples=400, deadline=None)
@given(
    st.builds(
        Traffic,
        asks=st.lists(ASKS, min_size=1, max_size=8),
        pages=st.sampled_from([(26,), (30,), (64,), (26, 40), (200,)]),
        page_size=st.sampled_from([1, 2, 4]),
        chunk=st.sampled_from([1, 2, 3, 7, 16, 64, None]),
        max_num_seqs=st.sampled_from([1, 2, 3, 8]),
        steps_in_flight=st.sampled_from([1, 2, 3]),
        prefix_cache=st.sampled_from([True, True, False]),
        drafters=DRAFTERS,
    )
)
def test_outputs_are_those_of_each_sequence_alone(traffic):
    traffic.play()
    traffic.compare()


@settings(max_examples=150, deadline=None)
@given(
    st.builds(
        Traffic,
        asks=st.lists(ASKS, min_size=3, max_size=8),
        pages=st.sampled_from([(7,), (8,), (9, 7)]),
        page_size=st.just(4),
        chunk=st.sampled_from([3, 8, 32, None]),
        max_num_seqs=st.just(8),
        steps_in_flight=st.sampled_from([1, 2, 3]),
        prefix_cache=st.sampled_from([True, True, False]),
        drafters=DRAFTERS,
    )
)
def test_outputs_are_the_same_when_pages_run_out(traffic):
    traffic.play()
    traffic.compare()


@pytest.mark.parametrize("steps_in_flight", [1, 2, 3])
def test_preemption_happens_and_loses_nothing(steps_in_flight):
    asks = [Ask((i, 2, 3, 4, 5), 30, seed=i, ignore_eos=True) for i in range(6)]
    traffic = Traffic(asks, pages=(12,), page_size=4, chunk=16, max_num_seqs=6, steps_in_flight=steps_in_flight)
    traffic.play()
    traffic.compare()
    assert traffic.observer.preemptions > 0
    finals = [events[-1] for events in traffic.events.values()]
    assert sum(final.timings.preemptions for final in finals) == traffic.observer.preemptions
    assert traffic.events["0", 0][-1].timings.preemptions == 0, "the oldest is never preempted"


def test_nobody_is_admitted_while_a_prompt_is_short_of_pages():
    """Four sequences grow while a long prompt is computed in chunks, until its last chunk does not fit; a request
    that would fit must wait all the same.
    """
    asks = [Ask((1, i), 60, seed=i, ignore_eos=True) for i in range(4)]
    asks += [Ask(tuple([3] * 90), 2, at=2, ignore_eos=True), Ask((4,), 2, at=3, ignore_eos=True)]
    traffic = Traffic(asks, pages=(111,), page_size=1, chunk=34, max_num_seqs=8, max_model_len=128)
    traffic.play()
    traffic.compare()
    assert traffic.short > 0


def test_a_newcomer_waits_for_pages_that_who_runs_will_want_next():
    asks = [Ask((1, 2, 3, 4), 4, ignore_eos=True), Ask((5, 6, 7), 2, ignore_eos=True)]
    traffic = Traffic(asks, pages=(2,), page_size=4)
    traffic.play()
    traffic.compare()
    assert traffic.observer.preemptions == 0
    assert all(len(plan.chunks) == 1 for plan in traffic.runner.plans)


def test_a_choice_needs_no_pages_for_what_it_shares():
    traffic = Traffic([Ask((1,) * 9, 3, n=2, ignore_eos=True)], pages=(6,), page_size=4, chunk=16)
    traffic.play()
    traffic.compare()
    assert traffic.runner.rows == 8 + 2 * 3


def test_a_preempted_choice_recomputes_alone_or_from_a_sibling():
    asks = [Ask((1, 2, 3, 4, 5), 25, n=5, ignore_eos=True), Ask((2, 2), 20, n=3, ignore_eos=True)]
    traffic = Traffic(asks, pages=(14,), page_size=2 * 2, chunk=16, max_num_seqs=8)
    traffic.play()
    traffic.compare()
    assert traffic.observer.preemptions > 0


def test_choices_share_the_prompt():
    prompt = tuple(i % STOP for i in range(41))
    traffic = Traffic([Ask(prompt, 1, n=4)], chunk=64, max_num_seqs=8)
    traffic.play()
    traffic.compare()
    assert traffic.runner.rows == 40 + 4, "the prompt once, and its last token for each choice"


@pytest.mark.parametrize("prefix_cache", [True, False])
def test_more_choices_than_slots_compute_the_prompt_once_for_each_lot(prefix_cache):
    prompt = tuple(i % STOP for i in range(41))
    traffic = Traffic([Ask(prompt, 1, n=8)], chunk=64, max_num_seqs=4, steps_in_flight=1, prefix_cache=prefix_cache)
    traffic.play()
    traffic.compare()
    assert traffic.runner.rows == (1 if prefix_cache else 2) * 40 + 8


def test_a_prompt_is_chunked_between_others_tokens():
    asks = [Ask((1, 2), 20, ignore_eos=True), Ask(tuple([3] * 40), 2, at=3)]
    traffic = Traffic(asks, chunk=8, max_num_seqs=4)
    traffic.play()
    traffic.compare()
    mixed = [plan for plan in traffic.runner.plans if len(plan.chunks) == 2]
    assert sum(plan.rows == 8 for plan in mixed) >= 5, (
        "full steps hold one token of the first and a chunk of the second"
    )
    assert all(len(plan.chunks[0].tokens) == 1 for plan in mixed)


def test_running_sequences_keep_their_row_when_an_older_prompt_wants_all():
    asks = [Ask(tuple([3] * 40), 2), Ask((1, 2), 9, ignore_eos=True)]
    traffic = Traffic(asks, chunk=42, max_num_seqs=4, pages=(64,), steps_in_flight=1)
    traffic.play()
    traffic.compare()
    assert len(traffic.runner.plans[0].chunks) == 2
    assert [c.samples for c in traffic.runner.plans[0].chunks] == [True, True]


def test_nothing_is_planned_beyond_what_counts_can_tell():
    traffic = Traffic([Ask((1, 2, 3), 5, ignore_eos=True)], steps_in_flight=3)
    traffic.play()
    traffic.compare()
    assert traffic.runner.rows == 3 + 4, "the last token is never computed, and none after it planned"


def test_the_runner_is_told_to_forget_whoever_it_met():
    asks = [Ask((1, 2, 3), 5, at=0), Ask((1,), 3, n=2, at=1), Ask((1,), 1, at=60)]
    traffic = Traffic(asks)
    traffic.play()
    starts = [s.sequence for plan in traffic.runner.plans for s in plan.starts]
    ends = [s for plan in traffic.runner.plans for s in plan.ends]
    assert sorted(starts) == [0, 1, 2, 3]
    assert sorted(ends) == [0, 1, 2]


def test_context_end_is_a_length_end():
    traffic = Traffic([Ask(tuple([1] * 60), 1000, ignore_eos=True)], chunk=64)
    traffic.play()
    traffic.compare()
    final = traffic.events["0", 0][-1]
    assert (final.completion_tokens, final.finish) == (4, FinishReason.LENGTH)


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 1000), steps=st.sampled_from([1, 2, 3]))
@example(seed=3, steps=2)
def test_a_stop_string_over_token_cuts_is_cut_off(seed, steps):
    asks = [Ask((1,), 40, seed=seed, stop=("aba", "é", "b c"), ignore_eos=True)]
    traffic = Traffic(asks, steps_in_flight=steps)
    traffic.play()
    traffic.compare()
    text = "".join(e.text for e in traffic.events["0", 0])
    assert not any(stop in text for stop in ("aba", "é", "b c"))
