"""The sampling rule: Philox against its published vectors, each step against small examples, and the distribution."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest

from pagoda.backends.ops import Draw
from pagoda.backends.sampling import Choice, gumbel, is_settled, keep, likeliest, log_softmax, penalize, philox, sample

F32 = np.float32


def draw(**params: float) -> Draw:
    """A draw that changes nothing and cuts nothing but for `params`."""
    plain = dict(slot=0, seed=7, choice=0, position=0, temperature=1.0, top_p=1.0, min_p=0.0, repetition=1.0)
    return Draw(**(plain | dict(frequency=0.0, presence=0.0, top_k=0, logprobs=-1) | params))


def logits(*numbers: float) -> np.ndarray:
    return np.array(numbers, F32)


@pytest.mark.parametrize(
    ("counter", "key", "words"),
    [
        ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((2**32 - 1,) * 4, (2**32 - 1,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_philox_known_answers(counter: tuple[int, ...], key: tuple[int, int], words: tuple[int, ...]) -> None:
    """Random123's `kat_vectors` for philox4x32-10; alone, and in a row with other counters."""
    rows = np.array([counter, (1, 2, 3, 4), counter], np.uint32)
    assert philox(rows[:1], key).tolist() == [list(words)]
    assert philox(rows, key)[2].tolist() == list(words)


def test_noise_is_keyed_by_seed_choice_position_and_token() -> None:
    seed, position, choice = 0x123456789ABCDEF0, 1000, 3
    ids = np.array([5, 0, 48_999])
    got = gumbel(ids, seed, position, choice)
    for token, noise in zip(ids, got, strict=True):
        counter = np.array([[token // 4, position, choice, 0]], np.uint32)
        word = int(philox(counter, (0x9ABCDEF0, 0x12345678))[0, token % 4])
        assert noise == pytest.approx(-math.log(-math.log((word + 0.5) / 2**32)), rel=1e-14)
    others = [
        gumbel(ids, *place)
        for place in ((seed + 1, 1000, 3), (seed + 2**32, 1000, 3), (seed, 1001, 3), (seed, 1000, 2))
    ]
    assert all((other != got).all() for other in others)
    assert (gumbel(np.arange(9), 0, 0, 0)[[5, 0]] == gumbel(np.array([5, 0]), 0, 0, 0)).all()


def test_noise_has_gumbels_moments() -> None:
    noise = gumbel(np.arange(200_000), 1, 2, 3)
    assert np.isfinite(noise).all()
    assert noise.mean() == pytest.approx(np.euler_gamma, abs=0.012)  # four standard errors
    assert noise.std() == pytest.approx(math.pi / math.sqrt(6), abs=0.015)


def test_penalties() -> None:
    x = logits(4, -4, 4, -4, 4, -4)
    # Tokens 0 and 1 are in the prompt alone; 2 and 3 in the output, once and twice; 0 also in the output, three times.
    got = penalize(x, draw(repetition=2, frequency=0.5, presence=0.25), prompt=[0, 1, 1], output=[2, 3, 3, 0, 0, 0])
    assert got.tolist() == [2 - 1.75, -8, 2 - 0.75, -8 - 1.25, 4, -4]
    assert got.dtype == F32
    assert x.tolist() == [4, -4, 4, -4, 4, -4]
    assert penalize(x, draw(), [0, 1], [2]).tolist() == x.tolist()
    assert penalize(x, draw(repetition=0.5, presence=-1), [], [0, 1]).tolist() == [9, -1, 4, -4, 4, -4]


def test_penalties_are_f32_arithmetic() -> None:
    x = np.random.default_rng(0).standard_normal(100).astype(F32) * 10
    taken = F32(F32(0.3) * F32(2)) + F32(0.1)
    want = [F32(F32(v / F32(1.1)) - taken) if v > 0 else F32(F32(v * F32(1.1)) - taken) for v in x]
    got = penalize(x, draw(repetition=1.1, frequency=0.3, presence=0.1), [], [*range(100), *range(100)])
    assert got.tolist() == want


@pytest.mark.parametrize("temperature", [0, 1e-300, 1e-40, 9e-6])
def test_greedy(temperature: float) -> None:
    """The greatest penalised logit; of equals, the lowest id; no noise, no cut."""
    params = dict(temperature=temperature, top_p=0.1, min_p=0.9, top_k=1)
    assert sample(logits(1, 3, 3, 2), draw(**params)).token == 1
    assert sample(logits(-0.0, 0.0, -1), draw(**params)).token == 0
    assert sample(logits(1, 5, 3.5, 2), draw(**params)) == Choice(1, 1.5)
    assert is_settled(logits(3, 3), draw(**params))
    assert sample(logits(1, 3, 2), draw(temperature=temperature, presence=2), output=[1]).token == 2


def kept(x: np.ndarray, **params: float) -> list[int]:
    return keep(x, draw(**params)).ids.tolist()


def test_candidates_are_ordered_by_z_then_id() -> None:
    assert kept(logits(1, 3, 1, 3, 2)) == [1, 3, 4, 0, 2]
    assert kept(logits(0.0, -0.0, 0.0)) == [0, 1, 2]
    assert keep(logits(1, 2), draw(temperature=0.3)).z.tolist() == [F32(2) / F32(0.3), F32(1) / F32(0.3)]


def test_top_k() -> None:
    x = logits(1, 3, 1, 3, 2)
    assert kept(x, top_k=1) == [1]
    assert kept(x, top_k=4) == [1, 3, 4, 0]
    assert kept(x, top_k=5) == kept(x, top_k=99) == kept(x, top_k=0) == [1, 3, 4, 0, 2]


def test_top_p() -> None:
    x = np.log(np.array([0.1, 0.5, 0.15, 0.25])).astype(F32)
    assert kept(x, top_p=1e-9) == kept(x, top_p=0.49) == [1]
    assert kept(x, top_p=0.51) == kept(x, top_p=0.74) == [1, 3]
    assert kept(x, top_p=0.76) == [1, 3, 2]
    assert kept(x, top_p=0.91) == kept(x, top_p=1) == [1, 3, 2, 0]
    # Four equal ones: two are exactly half, and half is enough.
    assert kept(logits(1, 1, 1, 1), top_p=0.5) == [0, 1]
    # The shares are of what top-k left: 0.5 and 0.25 of 0.75.
    assert kept(x, top_p=0.66, top_k=2) == [1]
    assert kept(x, top_p=0.67, top_k=2) == [1, 3]


def test_min_p() -> None:
    x = np.log(np.array([0.1, 0.5, 0.15, 0.25])).astype(F32)
    assert kept(x, min_p=0.19) == [1, 3, 2, 0]
    assert kept(x, min_p=0.21) == [1, 3, 2]
    assert kept(x, min_p=0.51) == [1]
    assert kept(logits(2, 2, 1), min_p=1) == [0, 1]
    # After top-p, and still a fraction of the likeliest.
    assert kept(x, min_p=0.45, top_p=0.9) == [1, 3]


def test_sample_is_the_greatest_of_z_and_noise() -> None:
    x = np.random.default_rng(1).standard_normal(1000).astype(F32)
    for position in range(50):
        scores = (x / F32(0.7)).astype(float) + gumbel(np.arange(1000), 2**40 + 5, position, 1)
        second, first = np.sort(scores)[-2:]
        got = sample(x, draw(seed=2**40 + 5, temperature=0.7, position=position, choice=1))
        assert got.token == int(scores.argmax())
        assert got.gap == first - second


def test_cuts_do_not_change_the_noise() -> None:
    """A token that survives a cut and won without it wins with it: candidates go, noise stays."""
    x = np.random.default_rng(2).standard_normal(300).astype(F32) * 2
    survived = 0
    for position in range(200):
        free = sample(x, draw(position=position))
        for cut in ({"top_k": 20}, {"top_p": 0.8}, {"min_p": 0.1}):
            params = draw(position=position, **cut)
            token = sample(x, params).token
            ids = keep(x, params).ids
            assert token in ids
            if free.token in ids:
                assert token == free.token
                survived += 1
    assert survived > 100


def test_one_candidate_has_no_runner_up() -> None:
    assert sample(logits(1, 2, 3), draw(top_k=1)) == Choice(2, math.inf)


def test_gap_of_equal_scores_is_zero() -> None:
    assert sample(logits(3, 3), draw(temperature=0)) == Choice(0, 0)


def test_settled_is_what_no_error_within_the_tolerance_changes() -> None:
    """Against every cut between the narrowest and the widest, and by its margin."""
    rng, settled = np.random.default_rng(3), 0
    for position in range(300):
        x = np.rint(rng.standard_normal(12) * 4).astype(F32) / 4
        params = {"position": position, "top_p": rng.uniform(0.2, 0.99), "min_p": rng.uniform(0.01, 0.3)}
        got = is_settled(x, draw(**params), tolerance=0.02)
        near = {
            sample(x, draw(**(params | {"top_p": params["top_p"] + p, "min_p": params["min_p"] + m}))).token
            for p in (-0.0199, 0, 0.0199)
            for m in (-0.0099, 0, 0.0199)
        }
        if got:
            assert len(near) == 1
            assert sample(x, draw(**params)).gap > 0.02
        settled += got
    assert 150 < settled < 290
    assert is_settled(logits(0, 5), draw(min_p=1), tolerance=0.1)  # narrowing keeps the first


def test_settled_sees_each_kind_of_doubt() -> None:
    gap = sample(logits(1, 1.5), draw()).gap
    assert is_settled(logits(1, 1.5), draw(), tolerance=gap / 2)
    assert not is_settled(logits(1, 1.5), draw(), tolerance=gap)
    # Two equal tokens, top-p at one's share: the second is in or out. It matters at places where the second would win.
    half = logits(0, 0)
    assert {is_settled(half, draw(top_p=0.5, position=p), tolerance=1e-6) for p in range(20)} == {True, False}
    ratio = np.log(np.array([1, 0.5])).astype(F32)
    assert {is_settled(ratio, draw(min_p=0.5, position=p), tolerance=1e-6) for p in range(20)} == {True, False}


def test_log_softmax_and_top() -> None:
    x = logits(1000, 1001, 999, 1001)
    got = log_softmax(x)
    total = math.log(math.exp(-1) + 1 + math.exp(-2) + 1)
    np.testing.assert_allclose(got, [-1 - total, -total, -2 - total, -total], rtol=1e-14)
    np.testing.assert_allclose(log_softmax(np.stack([x, x + 5])), [got, got], rtol=1e-14)
    assert likeliest(x, 3) == ((1, got[1]), (3, got[3]), (0, got[0]))
    assert likeliest(x, 0) == ()


CRITICAL = {3: 21.1, 4: 23.5, 5: 25.7, 6: 27.9, 7: 29.9}
"""Chi-square that a true distribution exceeds once in 10,000 times, by degrees of freedom."""


@pytest.mark.parametrize(
    ("params", "axis"),
    [
        ({}, "position"),
        ({}, "seed"),
        ({}, "choice"),
        ({"temperature": 0.5}, "position"),
        ({"temperature": 1.7, "top_k": 5}, "seed"),
        ({"top_p": 0.8}, "position"),
        ({"min_p": 0.15}, "seed"),
    ],
)
def test_frequencies_match_probabilities(params: dict[str, float], axis: str) -> None:
    """Over many places, along one axis of the noise's key at a time."""
    n = 2500
    x = np.array([0.3, -0.2, 1.1, 0.0, -1.0, 0.7, 0.2, -0.5], F32)
    cut = keep(x, draw(**params))
    weights = np.exp(cut.z.astype(float))
    expected = dict(zip(cut.ids.tolist(), weights / weights.sum() * n, strict=True))
    counts: Counter[int] = Counter()
    for i in range(n):
        counts[sample(x, draw(**params, **{axis: i})).token] += 1
    assert set(counts) <= set(expected)
    chi_square = sum((counts[t] - e) ** 2 / e for t, e in expected.items())
    assert chi_square < CRITICAL[len(expected) - 1]


def test_neighbouring_tokens_and_places_are_independent() -> None:
    """The winner among four equal tokens, at two places next to each other: all sixteen pairs equally often."""
    n, counts = 2500, np.zeros((4, 4))
    for i in range(n):
        a, b = (sample(np.zeros(4, F32), draw(position=2 * i + d)).token for d in (0, 1))
        counts[a, b] += 1
    assert ((counts - n / 16) ** 2 / (n / 16)).sum() < 44.3  # 15 degrees of freedom, once in 10,000
