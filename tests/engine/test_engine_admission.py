"""What is let in, with what resolved, and what is refused with which words."""

from __future__ import annotations

import pytest

from pagoda.engine import validate
from pagoda.errors import InvalidRequest, PromptTooLong
from pagoda.types import MAX_SEED, SamplingParams

from .fakes import VOCABULARY, capacity

CAPACITY = capacity((100,), 4, 64)


def ask(prompt=(1, 2, 3), capacity=CAPACITY, cap=None, **params):
    params = SamplingParams(**params)
    return validate(prompt, params, capacity, request_id="r", arrival=1.5, max_output_tokens=cap)


@pytest.mark.parametrize(
    ("asked", "cap", "resolved"),
    [(None, None, 61), (5, None, 5), (500, None, 61), (None, 10, 10), (50, 10, 10), (5, 10, 5), (None, 500, 61)],
)
def test_max_tokens_is_bounded_by_context_and_cap(asked, cap, resolved):
    assert ask(cap=cap, max_tokens=asked).params.max_tokens == resolved


def test_all_else_is_kept():
    request = ask([1, 2, 3], temperature=0.5, seed=MAX_SEED)
    assert (request.id, request.prompt, request.arrival) == ("r", (1, 2, 3), 1.5)
    assert (request.params.temperature, request.params.seed) == (0.5, MAX_SEED)


def test_a_seed_is_drawn_and_seldom_the_same():
    seeds = {ask().params.seed for _ in range(20)}
    assert len(seeds) == 20
    assert all(0 <= seed < 2**53 for seed in seeds)
    assert ask(seed=0).params.seed == 0


def test_an_empty_prompt():
    with pytest.raises(InvalidRequest, match="the prompt is empty"):
        ask(())


@pytest.mark.parametrize("token", [-1, VOCABULARY])
def test_token_ids_out_of_range(token):
    with pytest.raises(InvalidRequest, match=f"token ids run from 0 to 10, got {token}") as caught:
        ask((1, token, 2))
    assert caught.value.param == "prompt"
    with pytest.raises(InvalidRequest, match=f"token ids run from 0 to 10, got {token}") as caught:
        ask(stop_token_ids=(token,))
    assert caught.value.param == "stop_token_ids"


def test_a_prompt_must_leave_room_for_one_token():
    assert ask([1] * 63).params.max_tokens == 1
    with pytest.raises(PromptTooLong, match=r"has 64 tokens and the context holds 64.*shorten it to 63 or less"):
        ask([1] * 64)


def test_what_can_never_fit_is_refused_with_the_arithmetic():
    small = capacity((100, 5), 4, 64)
    assert ask([1] * 11, small, max_tokens=10).params.max_tokens == 10, "20 slots: the last token needs none"
    with pytest.raises(
        InvalidRequest, match=r"11 prompt tokens and 11 output tokens need 6 KV pages of 4 tokens.*are 5"
    ):
        ask([1] * 11, small, max_tokens=11)
    with pytest.raises(InvalidRequest, match="21 prompt tokens and 1 output tokens need 6 KV pages") as caught:
        ask([1] * 21, small)
    assert caught.value.param == "prompt"


def test_without_a_wish_the_pages_bound_the_output():
    assert ask([1] * 11, capacity((5,), 4, 64)).params.max_tokens == 10
    assert ask([1] * 20, capacity((5,), 4, 64)).params.max_tokens == 1
