"""`rank_of`: when a request is due, in seconds on the engine's clock: the lower, the more urgent.

Knows targets and predicted seconds. A due time never changes, so the queue can be a heap, and with one target for all
the order is that of arrival. Whoever waits is overtaken only by requests that are due earlier, and none that comes
after it is due is: so nothing waits for ever. Earliest deadline first after Liu and Layland 1973.
"""

from __future__ import annotations

from pagoda.types import GenerateRequest

STRETCH = 3.0
"""A request that has no target, or one that is shorter than its own prompt takes, is due after so many times that.

So a short prompt goes before a long one that came a little earlier, and the long one is not put off for ever.
"""
PATIENCE_S = 0.5
"""What a request without a target may take at any rate."""
PRIORITY_S = 1.0
"""Seconds by which one step of priority puts a request forward."""
SLACK = 1.5
"""A long prompt without a target is due no earlier than after so many times what it is predicted to take, with those
before it: several that come together cannot all be done by the same time, and overdue they would hold up short ones.
"""
FIRST = float("-inf")
"""Of a sequence that was preempted: it was served already."""


def rank_of(request: GenerateRequest, seconds: float, target: float | None, queued: float = 0.0) -> float:
    """When its first token is due.

    Args:
        request: with its arrival and priority.
        seconds: predicted to compute its prompt.
        target: TTFT to keep, in seconds; None is none.
        queued: predicted with those before it.
    """
    kept = target is not None and seconds <= target
    allowed = target if target is not None and kept else STRETCH * seconds
    if not kept:
        allowed = max(allowed, SLACK * queued) if allowed > PATIENCE_S else PATIENCE_S
    return request.arrival + allowed - PRIORITY_S * request.priority
