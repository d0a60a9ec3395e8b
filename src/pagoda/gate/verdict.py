"""What the gate found of one format of one model, and whether it passes: limits, findings, verdicts.

docs/quality.md has the reason of each limit. Knows what was measured; knows nothing of how, nor of where verdicts are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from math import exp

import numpy as np

from pagoda.gate.chance import SURE, UNLIKELY, chance_of_losses, chance_of_more, mean_and_error
from pagoda.gate.measure import Measured, Reading

DIVERGENCE = 0.02
"""Most nats of mean KL: by Pinsker's inequality, sampling differs at one token in ten at the most."""
AGREEMENT = 0.92
"""Least part of the tokens at which the likeliest one is the same."""
PERPLEXITY = 0.02
"""Most that perplexity may rise, as a part of it."""


_COUNTED = {"needles": "needles found", "loops": "continuations loop", "answers": "answers right"}


@dataclass(frozen=True, slots=True)
class Finding:
    """One measure, beside its limit."""

    measure: str
    """divergence, agreement, perplexity, needles, loops or answers."""
    value: float
    """Of the format: a mean, or how many."""
    reference: float
    """Of what it is compared with."""
    bound: float
    """How bad it may be, noise included: what the value is within 95 % of the time. Of a count, the chance that it is
    worse by chance alone."""
    limit: float
    """What `bound` must keep."""
    passed: bool
    of: int
    """Out of how many tokens or cases."""

    def __str__(self) -> str:
        if self.measure == "divergence":
            return f"mean KL {self.value:.2e} nats, at most {self.bound:.2e} (limit {self.limit:g})"
        if self.measure == "agreement":
            least = f"at least {self.bound:.1%} (limit {self.limit:.0%})"
            return f"the same likeliest token at {self.value:.1%}, {least}"
        if self.measure == "perplexity":
            change = f"{self.value / self.reference - 1:+.2%}, at most {self.bound:+.2%} (limit {self.limit:+.0%})"
            return f"perplexity {self.value:.2f} from {self.reference:.2f}: {change}"
        worse = f"so much worse by chance in {self.bound:.0%} of cases (limit {self.limit:.0%})"
        return f"{self.value:g} of {self.of} {_COUNTED[self.measure]}, {self.reference:g} before: {worse}"


@dataclass(frozen=True, slots=True)
class AtLength:
    """A format after a context of one length."""

    tokens: int
    divergence: float
    agreement: float
    perplexity: float
    needles: int
    of_needles: int
    loops: int
    of_loops: int


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the gate found of one format of one model."""

    fingerprint: str
    """Of the outputs that were measured."""
    model: str
    """What the user called it."""
    source: str
    """SHA-256 of the model's file as it is."""
    quantize: str | None
    kv_format: str
    activations: str
    against: str
    """What it was compared with, in words."""
    against_fingerprint: str
    date: str
    """When, in UTC: 2026-01-31T12:00:00Z."""
    findings: tuple[Finding, ...]
    lengths: tuple[AtLength, ...]

    @property
    def passed(self) -> bool:
        """Whether the format may be used without a second thought."""
        return all(finding.passed for finding in self.findings)

    @property
    def format(self) -> str:
        """Weights and KV format, in words."""
        return f"{self.quantize} weights, {self.kv_format} KV" if self.quantize else f"{self.kv_format} KV"

    def __getitem__(self, measure: str) -> Finding:
        """One finding."""
        return next(finding for finding in self.findings if finding.measure == measure)


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
