"""From measurements to findings: each beside its limit, with the noise of the measurement taken into account.

docs/quality.md has the reason of each limit.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from math import exp

import numpy as np

from pagoda.gate.chance import SURE, UNLIKELY, chance_of_losses, chance_of_more, mean_and_error
from pagoda.gate.measure import Measured, Reading
from pagoda.gate.verdict import AtLength, Finding

DIVERGENCE = 0.02
"""Most nats of mean KL: by Pinsker's inequality, sampling differs at one token in ten at the most."""
AGREEMENT = 0.92
"""Least part of the tokens at which the likeliest one is the same."""
PERPLEXITY = 0.02
"""Most that perplexity may rise, as a part of it."""


def judge(reference: Measured, subject: Measured) -> tuple[Finding, ...]:
    """Compare two that did the same work."""
    theirs, ours = reference.readings, subject.readings
    divergence, error = mean_and_error(np.concatenate([r.divergence for r in ours]))
    same, spread = mean_and_error(np.concatenate([r.same for r in ours]).astype(np.float64))
    before, after = (np.concatenate([r.surprise for r in each]) for each in (theirs, ours))
    rise, doubt = mean_and_error(after - before)
    tokens, worst = len(after), divergence + SURE * error
    least, most = same - SURE * spread, exp(rise + SURE * doubt) - 1
    perplexities = float(exp(after.mean())), float(exp(before.mean()))
    return (
        Finding("divergence", divergence, 0.0, worst, DIVERGENCE, worst <= DIVERGENCE, tokens),
        Finding("agreement", same, 1.0, least, AGREEMENT, least >= AGREEMENT, tokens),
        Finding("perplexity", *perplexities, most, PERPLEXITY, most <= PERPLEXITY, tokens),
        _counted("needles", *_both(theirs, ours, "found")),
        _counted("loops", *_both(theirs, ours, "looped")),
        _counted("answers", reference.right, subject.right),
    )


def _both(theirs: Sequence[Reading], ours: Sequence[Reading], name: str) -> tuple[tuple[bool, ...], tuple[bool, ...]]:
    before, after = (tuple(chain.from_iterable(getattr(r, name) for r in each)) for each in (theirs, ours))
    return before, after


def _counted(measure: str, before: tuple[bool, ...], after: tuple[bool, ...]) -> Finding:
    """Continuations are drawn anew, so a loop has no partner; needles and questions are the same ones."""
    chance = chance_of_more(before, after) if measure == "loops" else chance_of_losses(before, after)
    return Finding(measure, sum(after), sum(before), chance, UNLIKELY, chance >= UNLIKELY, len(after))


def at_lengths(measured: Measured) -> tuple[AtLength, ...]:
    """Each passage by itself."""
    return tuple(
        AtLength(
            r.length,
            float(r.divergence.mean()),
            float(r.same.mean()),
            float(exp(r.surprise.mean())),
            sum(r.found),
            len(r.found),
            sum(r.looped),
            len(r.looped),
        )
        for r in measured.readings
    )
