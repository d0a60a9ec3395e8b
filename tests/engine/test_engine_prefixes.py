"""The prefix cache as the engine uses it. Many tests say what users of other engines have met; they prevent it here."""

from __future__ import annotations

import logging
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pagoda.types import CacheCause, CacheExplanation

from .fakes import STOP
from .test_engine_traffic import Ask, Traffic

LONG = tuple((7 * i) % STOP for i in range(41))


def later(*prompts, gap=60, **common):
    """One request after another."""
    common = {"max_tokens": 2, "ignore_eos": True, **common}
    return [Ask(tuple(prompt), at=gap * i, **common) for i, prompt in enumerate(prompts)]


def played(asks, **shape):
    traffic = Traffic(asks, **{"chunk": 64, "max_num_seqs": 8, **shape})
    traffic.play()
    traffic.compare()
    return traffic


def explained(traffic):
    return [replace(traffic.events[str(i), 0][-1].cache, instead=()) for i in range(len(traffic.asks))]


def cached(traffic):
    return [traffic.events[str(i), 0][-1].cached_tokens for i in range(len(traffic.asks))]


# Hits that must not be missed.


@pytest.mark.parametrize("page_size", [1, 4, 16, 64])
def test_a_prefix_hits_below_one_page_and_to_the_token(page_size):
    """vllm#53749, #51198: no hits below a block, and nothing that says so."""
    traffic = played(later((1, 2, 3, 4, 5), (1, 2, 3, 9), (1, 2, 3, 4, 5)), page_size=page_size)
    assert cached(traffic) == [0, 3, 4]


def test_a_repeated_prompt_computes_one_token():
    """llama.cpp#21831, #24714: a whole prompt is processed again although it should hit."""
    traffic = played(later(LONG, LONG, max_tokens=1))
    assert traffic.runner.rows == 41 + 1
    assert cached(traffic) == [0, 40]


@pytest.mark.parametrize("page_size", [1, 4, 16])
def test_a_chat_computes_only_what_is_new_in_each_turn(page_size):
    """The answer's tokens hit too: they were computed when they were generated, all but the last."""
    prompts, outputs = [(1, 2, 3)], []
    for _ in range(5):
        asks = later(*prompts, max_tokens=4)
        traffic = played(asks, page_size=page_size, max_model_len=128)
        outputs.append([t for e in traffic.events[str(len(asks) - 1), 0] for t in e.token_ids])
        prompts.append((*prompts[-1], *outputs[-1], 5, 6))
    assert cached(traffic) == [0, *(len(p) - 3 for p in prompts[1:-1])]
    assert traffic.runner.rows == (3 + 3) + 4 * (3 + 3)


def test_all_at_once_compute_a_shared_prefix_once():
    """Many users come together with one system prompt: the first computes it, the others wait for it and join."""
    asks = [Ask((*LONG[:40], i % 3, i // 3 % 3, i // 9), 1) for i in range(27)]
    traffic = played(asks, chunk=64, max_num_seqs=32, pages=(200,))
    assert traffic.runner.rows <= 40 + 27 * 3
    assert all(found >= 40 for found in cached(traffic)[1:])
    assert len(traffic.runner.plans) <= 4


def test_who_waits_for_a_prefix_goes_on_when_its_owner_is_cancelled():
    asks = [Ask(LONG, 9, cancel_after=2), Ask((*LONG, 1), 3), Ask((*LONG, 2), 3)]
    traffic = played(asks, chunk=8)
    found = cached(traffic)
    assert 8 <= found[1] < 40, "what the first had computed is found"
    assert found[2] == 40


def test_no_waiting_for_less_than_a_page():
    """Prompts that share a few tokens are computed side by side."""
    traffic = played([Ask((1, 2, 3, i, i), 1) for i in range(4)], page_size=4, chunk=64)
    assert len(traffic.runner.plans) == 1


def test_choices_do_not_wait_for_the_page_that_the_prompt_fills():
    on, off = (played([Ask(LONG[:40], 3, n=3)], prefix_cache=cache, page_size=4) for cache in (True, False))
    assert len(on.runner.plans) == len(off.runner.plans)
    assert on.runner.rows == off.runner.rows


def test_other_tenants_do_not_wait_and_do_not_join():
    traffic = played([Ask(LONG, 1, tenant=t) for t in ("a", "b", "a")], chunk=128)
    assert cached(traffic) == [0, 0, 40]
    assert len(traffic.runner.plans[0].chunks) == 2


# Nothing is made slower, larger or different.

PROMPTS = st.builds(
    lambda head, tail: (*LONG[:head], *tail), st.integers(0, 20), st.lists(st.integers(0, 2), min_size=1, max_size=8)
)
ASKS = st.lists(
    st.builds(Ask, PROMPTS, st.integers(1, 6), n=st.sampled_from([1, 1, 2]), at=st.integers(0, 20)),
    min_size=2,
    max_size=8,
)


@settings(max_examples=80, deadline=None)
@given(asks=ASKS, page_size=st.sampled_from([1, 4]), chunk=st.sampled_from([4, 16, 64]))
def test_the_cache_changes_no_token_and_computes_no_more(asks, page_size, chunk):
    """vllm#7845: outputs differ with the cache on. vllm#3154, TensorRT-LLM#2631, #1915: it is slower with it."""
    on, off = (
        played(asks, page_size=page_size, chunk=chunk, pages=(400,), prefix_cache=cache) for cache in (True, False)
    )
    assert on.runner.rows <= off.runner.rows

    def told(traffic):
        return {
            k: [(e.token_ids, e.text, e.logprobs, e.finish) for e in events] for k, events in traffic.events.items()
        }

    assert told(on) == told(off)


@settings(max_examples=80, deadline=None)
@given(
    asks=st.lists(
        st.builds(
            Ask, PROMPTS, st.integers(1, 8), n=st.sampled_from([1, 2, 3]), at=st.integers(0, 60),
            tenant=st.sampled_from(["a", "b"]), ignore_eos=st.just(True),
        ),
        min_size=4, max_size=12,
    ),
    steps_in_flight=st.sampled_from([1, 2, 3]),
    pages=st.sampled_from([(9,), (11,), (16, 13)]),
)  # fmt: skip
def test_no_slot_of_another_prompt_is_read_however_pages_are_evicted_and_reused(asks, steps_in_flight, pages):
    """TensorRT-LLM#8813: text of other prompts. The runner asserts that each slot read holds its own prefix."""
    played(asks, pages=pages, steps_in_flight=steps_in_flight, chunk=16)


def test_a_full_cache_does_not_hang():
    """mistral.rs#1470: the cache's limit hangs. Here one request may need every page, and gets it."""
    prompts = [tuple((i, j % STOP, *[i] * 10)) for i in range(5) for j in range(3)]
    traffic = played([*later(*prompts), Ask((9,) * 28, 1, at=60 * 15)], pages=(7,))
    assert not any(cached(traffic)[-1:])
    assert traffic.observer.preemptions == 0


def test_memory_for_what_is_kept_is_bounded():
    """vllm#28726: host memory grows without bound. The roster's check asserts each bound after every step."""
    prompts = [tuple((i + j * j) % STOP for j in range(3 + i % 9)) for i in range(300)]
    traffic = played(later(*prompts, gap=6), pages=(12,))
    cache = traffic.engine._cache
    assert cache._tree.nodes <= 2 * 12
    assert len(cache._eviction._heap) <= 2 * 24 + 64
    assert len(cache._eviction._gone) <= 4 * 12


# Why.


def test_each_cause_is_told():
    asks = later(LONG, LONG, (*LONG[:20], STOP - 1, 1, 1), (*LONG, 1, 1, 1, 1), tenant="a")
    asks += [Ask((9, *LONG), 2, at=300, tenant="a"), Ask(LONG, 2, at=400, tenant="b")]
    traffic = played(asks, max_model_len=128)
    assert explained(traffic) == [
        CacheExplanation(0, CacheCause.NEVER_SEEN),
        CacheExplanation(40, CacheCause.WHOLE),
        CacheExplanation(20, CacheCause.DIFFERENT),
        CacheExplanation(41, CacheCause.DIFFERENT),
        CacheExplanation(0, CacheCause.DIFFERENT),
        CacheExplanation(0, CacheCause.NEVER_SEEN),
    ]
    assert traffic.observer.matches["5"] == (0, CacheCause.OTHER_KEY), "the counters know what clients are not told"


def test_what_is_kept_instead_is_told_of_ones_own_prefixes_only():
    """TensorRT-LLM#8813: text of other prompts appears."""
    other, mine = (*LONG[:20], 8, 8, 8, 8), (*LONG[:20], 9, 9, 9, 9)
    asks = [
        *later(other, tenant="b", max_tokens=1), Ask((*LONG[:20], 7), 1, at=60, tenant="a"),
        Ask(mine, 1, at=120, tenant="a"), Ask((*LONG[:20], 1, 2), 1, at=180, tenant="a"),
    ]  # fmt: skip
    traffic = played(asks)
    told = [traffic.events[str(i), 0][-1].cache for i in range(4)]
    assert told[1] == CacheExplanation(0, CacheCause.NEVER_SEEN)
    assert told[2] == CacheExplanation(20, CacheCause.DIFFERENT, (7,))
    assert told[3] == CacheExplanation(20, CacheCause.DIFFERENT, (9, 9, 9, 9)), "what was used last"


def test_an_evicted_prefix_is_told():
    traffic = played(later(LONG[:12], (5,) * 27, LONG[:12]), pages=(7,))
    assert explained(traffic)[-1] == CacheExplanation(0, CacheCause.EVICTED)


def test_no_cache_says_so():
    traffic = played(later(LONG, LONG), prefix_cache=False)
    assert explained(traffic) == [CacheExplanation(0, CacheCause.OFF)] * 2


def test_choices_tell_what_their_request_found():
    traffic = played([*later(LONG), Ask(LONG, 2, n=3, at=50)])
    assert [traffic.events["1", i][-1].cached_tokens for i in range(3)] == [40] * 3


# Eviction and preemption.


def test_the_least_recently_used_goes_first_and_a_shared_prefix_last():
    system = LONG[:8]
    users = [(*system, i, i, i, i) for i in range(9)]
    traffic = played([*later(*users), *[Ask((*system, i, i, i, 1), 1, at=900) for i in (0, 8)]], pages=(8,))
    assert cached(traffic)[:9] == [0, *[8] * 8]
    assert cached(traffic)[9:] == [8, 11], "the oldest tail is gone, the newest and what all share are there"


def test_a_victim_computes_again_only_what_was_evicted():
    """vllm#54644: recomputing after preemption costs 10 to 23 %, up to 79 %."""
    asks = [Ask((i, 2, 3, 4, 5), 30, seed=i, ignore_eos=True) for i in range(6)]
    on, off = (
        played(asks, pages=(14,), page_size=4, chunk=16, max_num_seqs=6, prefix_cache=cache) for cache in (True, False)
    )
    useful = 6 * (5 + 29)
    assert on.observer.preemptions > 0
    assert on.runner.rows - useful <= (off.runner.rows - useful) * 2 / 3
    assert len(on.runner.plans) <= len(off.runner.plans), "sglang#26248: decoding collapses after a retraction"


def test_whoever_is_preempted_is_named(caplog):
    """vllm PR#42827: the log never says who."""
    caplog.set_level(logging.INFO, "pagoda.engine.scheduler")
    asks = [Ask((i, 2, 3, 4, 5), 30, seed=i, ignore_eos=True) for i in range(6)]
    traffic = played(asks, pages=(12,), chunk=16)
    per = {str(i): traffic.events[str(i), 0][-1].timings.preemptions for i in range(6)}
    assert {name: traffic.observer.victims.count(name) for name in per} == per
    logged = [record.getMessage() for record in caplog.records]
    assert [line.split()[1].rstrip(",") for line in logged] == traffic.observer.victims
    assert all("lost its pages to" in line for line in logged)


@pytest.mark.parametrize("prefix_cache", [True, False])
def test_sequences_that_fill_the_pool_alone_take_turns_and_end(prefix_cache):
    """sglang#38019: livelock, each taking the other's pages in turn."""
    asks = [Ask((i,) * 8, 20, seed=i, ignore_eos=True) for i in range(5)]
    traffic = played(asks, pages=(7,), page_size=4, chunk=16, prefix_cache=prefix_cache)
    assert traffic.observer.preemptions <= 10


def test_nobody_waits_longer_because_one_ahead_waits_for_a_prefix():
    """sglang#10063: short prompts stuck behind long ones; waiting for a prefix must not add to it."""
    asks = [Ask(LONG, 3, ignore_eos=True), Ask((*LONG, 1), 3, ignore_eos=True), Ask((1, 2), 3, ignore_eos=True)]

    def first_plan(traffic):
        return next(p.number for p in traffic.runner.plans if any(c.sequence == 2 for c in p.chunks))

    on, off = (played(asks, chunk=8, prefix_cache=cache) for cache in (True, False))
    assert first_plan(on) <= first_plan(off)
