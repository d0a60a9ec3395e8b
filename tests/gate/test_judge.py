"""Findings: a format that changes nothing passes, noise alone fails none, and each measure can fail by itself."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from pagoda.gate.judge import AGREEMENT, DIVERGENCE, at_lengths, judge
from pagoda.gate.measure import Measured, Reading, log_softmax, loops

RNG = np.random.default_rng(0)
TOKENS = 1024
REFERENCE = Reading(
    512, RNG.exponential(3, TOKENS), np.zeros(TOKENS), np.ones(TOKENS, np.bool_), (True,) * 10, (False,) * 10
)


def measured(right: int = 40, **fields: Any) -> Measured:
    return Measured((replace(REFERENCE, **fields),), (True,) * right + (False,) * (48 - right))


def failed(**fields: Any) -> list[str]:
    return [finding.measure for finding in judge(measured(), measured(**fields)) if not finding.passed]


def noisy(mean: float, spread: float) -> Any:
    return np.abs(RNG.normal(mean, spread, TOKENS))


def test_nothing_changed() -> None:
    findings = judge(measured(), measured())
    assert [f.measure for f in findings] == ["divergence", "agreement", "perplexity", "needles", "loops", "answers"]
    assert all(f.passed for f in findings)


@pytest.mark.parametrize(
    ("measure", "fields"),
    [
        ("divergence", {"divergence": noisy(1.3 * DIVERGENCE, 0.001)}),
        ("agreement", {"same": RNG.random(TOKENS) < AGREEMENT - 0.05}),
        ("perplexity", {"surprise": REFERENCE.surprise + 0.04}),
        ("needles", {"found": (False,) * 5 + (True,) * 5}),
        ("loops", {"looped": (True,) * 4 + (False,) * 6}),
        ("answers", {"right": 35}),
    ],
)
def test_each_measure_fails_by_itself(measure: str, fields: dict[str, Any]) -> None:
    assert failed(**fields) == [measure]


def test_a_little_worse_may_be_noise() -> None:
    lost = {"found": (False,) * 2 + (True,) * 8, "looped": (True,) * 2 + (False,) * 8, "right": 37}
    assert failed(**lost, surprise=REFERENCE.surprise + RNG.normal(0, 0.1, TOKENS)) == []


def test_a_mean_within_the_limit_is_not_enough_if_it_may_be_beyond() -> None:
    wild = np.zeros(TOKENS)
    wild[:32] = 0.7 * DIVERGENCE * TOKENS / 32
    assert wild.mean() < DIVERGENCE
    assert failed(divergence=wild) == ["divergence"]


def test_by_length() -> None:
    (at,) = at_lengths(measured(found=(True, False), looped=(True,)))
    assert (at.tokens, at.divergence, at.agreement) == (512, 0, 1)
    assert at.perplexity == pytest.approx(np.exp(REFERENCE.surprise.mean()))
    assert (at.needles, at.of_needles, at.loops, at.of_loops) == (1, 2, 1, 1)


def test_log_softmax() -> None:
    logits = RNG.normal(0, 30, (5, 999)).astype(np.float32)
    wide = logits.astype(np.float64)
    wide -= wide.max(-1, keepdims=True)
    np.testing.assert_allclose(log_softmax(logits), wide - np.log(np.exp(wide).sum(-1, keepdims=True)), atol=2e-5)


@pytest.mark.parametrize(
    ("output", "looped"),
    [
        ([7] * 96, True), (list(range(24)) * 4, True), ([*range(24), *[1, 2, 3] * 24], True),
        (list(range(25)) * 4, False),
        (list(range(96)), False), ([*[1, 2] * 40, 9, *[1, 2] * 8], False),
    ],
)  # fmt: skip
def test_loops(output: list[int], looped: bool) -> None:
    assert loops(output) is looped
