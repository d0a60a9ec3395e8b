"""Requests that are answered as a whole, beams and the best of several, among other traffic: whatever the chunk, the
pages, the slots and the steps in flight, their answers are those of a search that knows neither sequences nor pages.
"""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pagoda.errors import InvalidRequest
from pagoda.types import FinishReason, SamplingParams

from .fakes import STOP, VOCABULARY, capacity, expected, likeliest, request, searched
from .test_engine_traffic import ASKS, Ask, Traffic


@dataclass
class Whole(Ask):
    """A request for beams (`beams`), or for the best of several (`best_of`)."""

    beams: int | None = None
    best_of: int | None = None
    length_penalty: float = 1.0
    early_stopping: bool | str = False
    logprobs: int | None = None


@dataclass
class Mixed(Traffic):
    """Traffic in which some requests are of that kind."""

    def params(self, ask):
        return super().params(ask) | (
            {
                "beams": ask.beams, "best_of": ask.best_of, "length_penalty": ask.length_penalty,
                "early_stopping": ask.early_stopping, "logprobs": ask.logprobs,
            } if isinstance(ask, Whole) else {}
        )  # fmt: skip

    def in_turn(self, sequence):
        """A beam that is born has pages before it has a chunk."""
        return sequence.state.beams is None

    def compare(self):
        pairs = list(zip(self.asks, self.requests, strict=True))
        self.asks = [ask for ask, _ in pairs if not isinstance(ask, Whole)]
        self.requests = [req for ask, req in pairs if not isinstance(ask, Whole)]
        super().compare()
        for ask, req in pairs:
            if isinstance(ask, Whole):
                self.compare_whole(ask, req)

    def compare_whole(self, ask, req):
        finals = []
        for index in range(ask.n):
            (event,) = self.events[req.id, index]
            finals.append(event)
            assert (event.index, event.prompt_tokens) == (index, len(req.prompt))
        assert not any((req.id, index) in self.events for index in range(ask.n, req.params.sequences))
        if finals[0].finish is FinishReason.CANCELLED:
            assert ask.cancel_after is not None
            assert all(event.finish is FinishReason.CANCELLED for event in finals)
            return
        answer = searched(req.prompt, req.params) if ask.beams else best(req.prompt, req.params)
        assert [(list(event.token_ids), event.text, event.finish) for event in finals] == answer
        for event in finals:
            assert event.completion_tokens == len(event.token_ids)
            assert event.timings.queued <= event.timings.first_token <= event.timings.total
            self.compare_logprobs(ask, req, event)

    def compare_logprobs(self, ask, req, event):
        if ask.logprobs is None:
            assert not event.logprobs
            return
        assert [entry.token_id for entry in event.logprobs] == list(event.token_ids)
        for at, entry in enumerate(event.logprobs):
            before = (*req.prompt, *event.token_ids[:at])
            assert entry.logprob == dict(likeliest(before, VOCABULARY))[entry.token_id]
            assert entry.top[: ask.logprobs] == likeliest(before, ask.logprobs)
            assert not ask.beams or len(entry.top) == ask.logprobs


def best(prompt, params):
    """Brute force: every sample alone, then the best of them."""
    lines = [expected(prompt, params, choice) for choice in range(params.sequences)]

    def mean(choice):
        tokens = lines[choice][0]
        all_of_it = [dict(likeliest((*prompt, *tokens[:i]), VOCABULARY))[t] for i, t in enumerate(tokens)]
        return sum(all_of_it) / len(tokens)

    return [lines[choice] for choice in sorted(range(len(lines)), key=lambda c: (-mean(c), c))[: params.n]]


BEAMS = st.builds(
    Whole,
    prompt=st.lists(st.integers(0, STOP - 1), min_size=1, max_size=14).map(tuple),
    max_tokens=st.integers(1, 10),
    beams=st.integers(1, 6),
    length_penalty=st.sampled_from([1.0, 0.0, 2.0, -1.0]),
    early_stopping=st.sampled_from([False, True, "never"]),
    stop=st.sampled_from([(), (), ("ab",), ("é", "ba")]),
    ignore_eos=st.booleans(),
    at=st.integers(0, 12),
    cancel_after=st.sampled_from([None, None, None, 0, 3, 9]),
    logprobs=st.sampled_from([None, 0, 2]),
).flatmap(lambda ask: st.integers(1, ask.beams).map(lambda n: with_n(ask, n)))
BEST_OF = st.builds(
    Whole,
    prompt=st.lists(st.integers(0, STOP - 1), min_size=1, max_size=14).map(tuple),
    max_tokens=st.integers(1, 10),
    best_of=st.integers(2, 5),
    seed=st.integers(0, 5),
    stop=st.sampled_from([(), ("aba",)]),
    at=st.integers(0, 12),
    cancel_after=st.sampled_from([None, None, None, 0, 3, 9]),
    logprobs=st.sampled_from([None, 0, 2]),
)


def with_n(ask, n):
    ask.n = n
    return ask


@settings(max_examples=200, deadline=None)
@given(
    st.builds(
        Mixed,
        asks=st.lists(st.one_of(BEAMS, BEAMS, BEST_OF, ASKS), min_size=1, max_size=6),
        pages=st.sampled_from([(26,), (30,), (64,), (26, 40), (200,)]),
        page_size=st.sampled_from([1, 2, 4]),
        chunk=st.sampled_from([1, 3, 7, 64]),
        max_num_seqs=st.sampled_from([1, 2, 3, 8]),
        steps_in_flight=st.sampled_from([1, 2, 3]),
        prefix_cache=st.sampled_from([True, True, False]),
    )
)
def test_answers_are_those_of_the_search_alone(traffic):
    traffic.play()
    traffic.compare()


@settings(max_examples=150, deadline=None)
@given(
    st.builds(
        Mixed,
        asks=st.lists(st.one_of(BEAMS, BEAMS, BEST_OF, ASKS), min_size=2, max_size=6),
        pages=st.sampled_from([(7,), (8,), (9, 7)]),
        page_size=st.just(4),
        chunk=st.sampled_from([3, 8, 32]),
        max_num_seqs=st.sampled_from([2, 8]),
        steps_in_flight=st.sampled_from([1, 2, 3]),
        prefix_cache=st.sampled_from([True, True, False]),
    )
)
def test_answers_are_the_same_when_pages_run_out(traffic):
    traffic.play()
    traffic.compare()


@pytest.mark.parametrize("steps_in_flight", [1, 2])
def test_beams_share_their_prompt_and_what_they_have_in_common(steps_in_flight):
    """The prompt once; no more pages than that and a few for each beam."""
    ask = Whole(tuple(i % STOP for i in range(40)), 12, beams=6, n=6, ignore_eos=True)
    traffic = Mixed([ask], pages=(64,), page_size=4, chunk=64, max_num_seqs=8, steps_in_flight=steps_in_flight)
    traffic.play()
    traffic.compare()
    assert traffic.runner.rows == 40 + 6 * 11, "no beam is computed twice"
    most = max(len({p for chunk in plan.chunks for p in chunk.pages[0]}) for plan in traffic.runner.plans)
    assert most <= 10 + 6 * 3


def test_dead_beams_leave_nothing_behind():
    """Neither pages in use, nor prefixes that would push out better ones."""
    ask = Whole((1, 2, 3, 4, 5), 12, beams=4, n=1, ignore_eos=True)
    traffic = Mixed([ask], page_size=2, chunk=64, max_num_seqs=8)
    traffic.play()
    traffic.compare()
    kept = traffic.engine._cache.idle
    assert kept == 3, "the prompt's pages, and nothing of any beam"


def test_more_beams_than_slots_take_turns():
    traffic = Mixed([Whole((1, 2, 3), 8, beams=6, n=6), Ask((4,), 5)], max_num_seqs=2)
    traffic.play()
    traffic.compare()
    assert traffic.observer.preemptions > 0


def test_beams_that_do_not_fit_at_once_take_turns():
    """Each alone fits, with hardly a page to spare."""
    traffic = Mixed([Whole((1,) * 9, 16, beams=5, n=5, ignore_eos=True)], pages=(7,), page_size=4, max_num_seqs=8)
    traffic.play()
    traffic.compare()
    assert traffic.observer.preemptions > 0
    assert traffic.events["0", 0][-1].timings.preemptions == traffic.observer.preemptions


def test_what_does_not_combine_is_refused_by_name():
    for params, name in [
        ({"beams": 0}, "beams"), ({"beams": 129}, "beams"), ({"beams": 2, "n": 3}, "beams"),
        ({"beams": 2, "best_of": 2}, "best_of"), ({"beams": 2, "temperature": 0.5}, "temperature"),
        ({"beams": 2, "top_p": 0.5}, "top_p"), ({"beams": 2, "repetition_penalty": 1.5}, "repetition_penalty"),
        ({"n": 3, "best_of": 2}, "best_of"), ({"beams": 2, "early_stopping": "soon"}, "early_stopping"),
        ({"beams": 2, "length_penalty": 99}, "length_penalty"),
    ]:  # fmt: skip
        with pytest.raises(InvalidRequest) as refusal:
            SamplingParams(**params)
        assert refusal.value.param == name
    with pytest.raises(InvalidRequest, match="vocabulary"):
        request(capacity(), beams=VOCABULARY + 1)
