"""Drafters: what they guess, how sure they are, and what they keep."""

from __future__ import annotations

import random
from itertools import count
from typing import Any

import pytest

from pagoda.backends.texts import NativeTexts
from pagoda.engine.request import RequestState, Sequence
from pagoda.engine.speculation import GuessingDrafter, NgramDrafter
from pagoda.engine.speculation import ngram as ngram_file
from pagoda.engine.speculation.odds import Bias
from pagoda.plan import GUESS

from .fakes import capacity, request

ids = count()


def sequence(
    prompt: tuple[int, ...], output: tuple[int, ...] = (), tenant: str = "", pending: int = 0, temperature: float = 1.0
) -> Sequence:
    wide = capacity(pages=(4096,), page_size=16, max_model_len=4096)
    asked = request(wide, prompt, f"r{next(ids)}", tenant=tenant, max_tokens=2048, temperature=temperature)
    (made,) = RequestState(asked, lambda _: None, ids).sequences
    made.output, made.pending = list(output), pending
    return made


def followed(drafter: NgramDrafter, who: Sequence) -> Sequence:
    drafter.look([who])
    drafter.check()
    return who


def test_what_followed_the_same_words_before() -> None:
    drafter = NgramDrafter(NativeTexts())
    guess = drafter.guess(followed(drafter, sequence((1, 2, 3, 4, 5, 6, 9, 9), (2, 3, 4))), 3)
    assert guess.tokens == (5, 6, 9)
    assert len(guess.chances) == 3
    assert 1 > guess.chances[0] > guess.chances[1] > guess.chances[2] > 0


def test_nothing_without_a_match_of_two() -> None:
    drafter = NgramDrafter(NativeTexts())
    assert not drafter.guess(followed(drafter, sequence((1, 2, 3, 4), (5,))), 3).tokens
    assert not drafter.guess(followed(drafter, sequence((1, 2, 3, 4), (3,))), 3).tokens


def test_guesses_begin_after_the_tokens_in_flight() -> None:
    drafter = NgramDrafter(NativeTexts())
    plain = drafter.guess(followed(drafter, sequence((1, 2, 3, 4, 5, 6), (1, 2))), 4)
    ahead = drafter.guess(followed(drafter, sequence((1, 2, 3, 4, 5, 6), (1, 2), pending=2)), 4)
    assert plain.tokens == (3, 4, 5, 6)
    assert ahead.tokens[:2] == (5, 6)
    assert ahead.chances[0] == pytest.approx(plain.chances[2]), "the tokens in flight must be right too"


def test_a_run_goes_round() -> None:
    drafter = NgramDrafter(NativeTexts())
    assert drafter.guess(followed(drafter, sequence((1, 2, 3), (1, 2, 3, 1, 2))), 7).tokens == (3, 1, 2, 3, 1, 2, 3)


def test_looking_takes_as_many_steps_as_it_may(monkeypatch: pytest.MonkeyPatch) -> None:
    """Until all of a sequence was looked at, nothing is guessed for it."""
    monkeypatch.setattr(ngram_file, "LOOKS", 30)
    drafter, who = NgramDrafter(NativeTexts()), sequence((1, 2, 3, 4) * 25, (1, 2))
    for looked in (30, 60, 90, 102):
        assert not drafter.guess(who, 1).tokens
        drafter.look([who])
        assert drafter._followers[who.id].seen == looked
    assert drafter.guess(who, 1).tokens


def test_recent_outputs_of_the_same_tenant_only() -> None:
    drafter = NgramDrafter(NativeTexts())
    drafter.forget(followed(drafter, sequence((1,), (5, 6, 7, 8, 4), tenant="a")))
    assert drafter.guess(followed(drafter, sequence((2,), (5, 6), tenant="a")), 9).tokens == (7, 8, 4)
    assert not drafter.guess(followed(drafter, sequence((2,), (5, 6), tenant="b")), 9).tokens
    drafter.check()


def test_a_guess_does_not_cross_from_one_output_into_the_next() -> None:
    drafter = NgramDrafter(NativeTexts())
    for output in ((5, 6, 7), (8, 4, 3)):
        drafter.forget(followed(drafter, sequence((1,), output)))
    assert drafter.guess(followed(drafter, sequence((2,), (5, 6))), 9).tokens == (7,)
    assert not drafter.guess(followed(drafter, sequence((2,), (6, 7))), 9).tokens


def test_the_longer_the_match_the_surer_at_first() -> None:
    """Five kinds of match, each expected to be right more often than the shorter ones."""
    sure = []
    for length in (2, 3, 4, 8, 16):
        drafter, run = NgramDrafter(NativeTexts()), tuple(1 + (i * i + i // 7) % 5 for i in range(length))
        who = followed(drafter, sequence((*run, 7, 8, 9, *run)))
        assert drafter._followers[who.id].length == length
        sure.append(drafter.guess(who, 1).chances[0])
    assert sure == sorted(set(sure))
    assert len(sure) == len(ngram_file._EXPECTED)


def test_what_is_kept_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ngram_file, "RECENT", 50)
    monkeypatch.setattr(ngram_file, "TENANTS", 3)
    drafter, rng = NgramDrafter(NativeTexts()), random.Random(0)
    for i in range(40):
        output = tuple(rng.randrange(9) for _ in range(rng.randrange(1, 80)))
        drafter.forget(followed(drafter, sequence((1,), output, tenant=str(i % 5))))
        drafter.check()
        kept = [len(text) for halves in drafter._recent.values() for text in halves]
        assert sum(kept) <= 3 * 2 * (50 + 51)
    assert not drafter._followers


def test_odds_are_learned_from_every_token() -> None:
    """A text that repeats itself makes it sure, one that never goes on as before makes it unsure, with no draft."""
    rng = random.Random(0)

    def surety(outputs: list[int]) -> float:
        drafter, who = NgramDrafter(NativeTexts()), sequence((1, 2, 3, 4, 5, 6, 7, 8))
        for token in outputs:
            who.output.append(token)
            drafter.look([who])
        who.output += [1, 2]
        for _ in range(ngram_file.LONGEST_REST + 1):
            drafter.look([who])
        return max(drafter.guess(who, 1).chances, default=0.0)  # none: it is hopeless

    faithful = [*range(1, 9)] * 6
    fickle = [token for _ in range(40) for token in (1, 2, rng.randrange(100, 10**6))]
    assert surety(faithful) > 0.8 > 0.4 > surety(fickle)


def test_odds_are_those_of_sequences_as_warm() -> None:
    """What is learned where nothing is left to chance says nothing of where much is."""
    drafter = NgramDrafter(NativeTexts())
    for _ in range(10):
        who = sequence((1, 2, 3, 4), (1, 2, 3, 4, 1, 2, 3, 4), temperature=0.0)
        drafter.look([who])
    cold, warm = (sequence((7, 8, 9), (7, 8), temperature=t) for t in (0.0, 0.8))
    drafter.look([cold, warm])
    assert drafter.guess(cold, 1).chances[0] > 1.5 * drafter.guess(warm, 1).chances[0]


def test_who_never_repeats_anything_is_looked_at_less_and_less() -> None:
    """And every token counts all the same, once it is; a draft that is right brings back the attention."""
    drafter, who = NgramDrafter(NativeTexts()), sequence((1, 2, 3))
    looks = 0
    for token in range(10, 410):
        who.output.append(token)
        before = drafter._followers[who.id].seen if token > 10 else 0
        drafter.look([who])
        looks += drafter._followers[who.id].seen > before
        drafter.check()
    assert 50 < looks < 150
    drafter.verified(who, 1, 1)
    for token in (50, 51, 52):
        who.output.append(token)
        drafter.look([who])
    assert drafter.guess(who, 2).tokens == (53, 54)


def test_a_bias_moves_odds() -> None:
    """Nothing seen: as expected. Twice as often right as expected, and half as often wrong: towards that."""
    bias = Bias()
    assert bias.applied(0.3, 8.0) == pytest.approx(0.3)
    for i in range(600):
        bias.add(i % 3 > 0, 1 / 3)
        bias.check()
    assert bias.applied(1 / 3, 1e-9) == pytest.approx(2 / 3, abs=0.02)
    assert bias.applied(1 / 3, 8.0) < 0.64
    assert bias.applied(0.9, 8.0) > 0.95


def test_the_runners_guesses_are_placeholders() -> None:
    drafter, who = GuessingDrafter("self"), sequence((1, 2, 3), (4,))
    guess = drafter.guess(who, 3)
    assert guess.tokens == (GUESS,) * 3
    assert 1 > guess.chances[0] > guess.chances[1] > guess.chances[2] > 0


@pytest.mark.parametrize(("right", "low", "high"), [(4, 0.9, 1.0), (0, 0.0, 0.1), (2, 0.55, 0.75)])
def test_the_runners_odds_are_those_of_what_was_verified(right: int, low: float, high: float) -> None:
    drafter, who = GuessingDrafter("self"), sequence((1, 2, 3), (4,))
    for _ in range(60):
        drafter.verified(who, 4, right)
        drafter.check()
    assert low <= drafter.guess(who, 1).chances[0] <= high
    others: Any = drafter.guess(sequence((5,), (6,)), 1).chances[0]
    assert low <= others <= high, "a new sequence is expected to be like those before"
    drafter.forget(who)
    assert not drafter._odds


def test_what_a_guess_costs_is_learned() -> None:
    drafter = GuessingDrafter("self")
    for _ in range(30):
        drafter.took(4, 0.008)
    assert drafter.seconds == pytest.approx(0.002)
