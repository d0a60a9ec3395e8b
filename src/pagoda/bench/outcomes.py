"""What became of requests, and what a client would say of them: percentiles, rates, goodput.

Knows times; neither how the requests were sent nor to what.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from pagoda.bench.workloads import Ask


@dataclass(slots=True)
class Outcome:
    """What became of a request. Times in seconds from the beginning."""

    ask: Ask
    sent: float
    """When it was sent: TTFT counts from here."""
    refused: str = ""
    """Why it was not taken on, or failed."""
    predicted: float = 0.0
    times: list[float] = field(default_factory=list)
    """When each of its tokens came."""
    tokens: int = 0
    """Tokens of the answer, as the server counted them; 0 are as many as came."""
    prompt_tokens: int = 0
    cached_tokens: int = 0
    answered: float = 0.0
    """Seconds until a refusal was answered."""
    ended: int = 0
    """How often its end was told: once, if all is well."""

    @property
    def ttft(self) -> float:
        """From arrival to the first token."""
        return self.times[0] - self.sent

    @property
    def gaps(self) -> list[float]:
        """ITL."""
        return [b - a for a, b in zip(self.times, self.times[1:], strict=False)]

    @property
    def tpot(self) -> float:
        """Mean seconds per token after the first."""
        count = self.count
        return (self.times[-1] - self.times[0]) / (count - 1) if count > 1 and self.times else 0.0

    @property
    def count(self) -> int:
        """Tokens of the answer."""
        return self.tokens or len(self.times)


def quantile(values: Sequence[float], part: float) -> float:
    """The value that so great a part does not exceed; 0 of nothing."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))] if ordered else 0.0


def report(outcomes: Sequence[Outcome], ttft: float | None = None, tpot: float | None = None) -> dict[str, Any]:
    """What a client would say: percentiles in milliseconds, rates, and goodput under targets in seconds."""
    served = [outcome for outcome in outcomes if outcome.times]
    if not served:
        return {"requests": len(outcomes), "served": 0, "refused": sum(bool(o.refused) for o in outcomes)}
    kept = [o for o in served if (ttft is None or o.ttft <= ttft) and (tpot is None or o.tpot <= tpot)]
    gaps = [gap for outcome in served for gap in outcome.gaps]
    ttfts = [outcome.ttft for outcome in served]
    tpots = [outcome.tpot for outcome in served if outcome.count > 1]
    wrong = [abs(o.predicted - o.ttft) / o.ttft for o in served if o.predicted]
    seconds = max(o.times[-1] for o in served) - min(o.sent for o in served)
    return {
        "requests": len(outcomes),
        "served": len(served),
        "refused": sum(bool(outcome.refused) for outcome in outcomes),
        "kept": round(len(kept) / len(served), 4),
        "seconds": round(seconds, 1),
        "goodput_per_s": round(len(kept) / seconds, 4),
        "goodput_tokens_per_s": round(sum(o.count for o in kept) / seconds, 2),
        "output_tokens_per_s": round(sum(o.count for o in served) / seconds, 2),
        "prompt_tokens_per_s": round(sum(o.prompt_tokens or o.ask.tokens for o in served) / seconds, 2),
        "cached_tokens": sum(o.cached_tokens for o in served),
        "refusals": dict(Counter(o.refused for o in outcomes if o.refused)),
        "ttft_ms": {f"p{p}": round(1000 * quantile(ttfts, p / 100), 1) for p in (50, 90, 99)},
        "itl_ms": {f"p{p}": round(1000 * quantile(gaps, p / 100), 1) for p in (50, 90, 99)},
        "tpot_ms": {f"p{p}": round(1000 * quantile(tpots, p / 100), 1) for p in (50, 90, 99)},
        "refused_ms": {"p99": round(1000 * quantile([o.answered for o in outcomes if o.refused], 0.99), 1)},
        "prediction_error_median": round(statistics.median(wrong), 4) if wrong else None,
    }
