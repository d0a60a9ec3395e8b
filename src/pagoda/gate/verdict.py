"""What the gate found of one format of one model: plain data.

Knows nothing of how it was measured, nor of where it is kept.
"""

from __future__ import annotations

from dataclasses import dataclass

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
