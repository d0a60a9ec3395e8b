"""`validate`: from what a client asked for to a `GenerateRequest`, or a clear refusal. After it nobody checks again."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import replace

from pagoda.errors import InvalidRequest, PromptTooLong
from pagoda.plan import Capacity
from pagoda.types import MAX_PRIORITY, GenerateRequest, SamplingParams, Slo

DRAWN_SEEDS = 2**53
"""Seeds drawn are below this: every JSON reader holds them exactly."""
_NO_TARGETS = Slo()


def validate(
    prompt: Sequence[int],
    params: SamplingParams,
    capacity: Capacity,
    *,
    request_id: str,
    arrival: float,
    max_output_tokens: int | None = None,
    tenant: str = "",
    slo: Slo = _NO_TARGETS,
    priority: int = 0,
    speculate: bool = True,
) -> GenerateRequest:
    """A request that the engine can serve, with `max_tokens` and `seed` resolved.

    Args:
        prompt: token ids.
        params: as the client gave them.
        capacity: what the runner holds.
        request_id: unique among the requests under way.
        arrival: when the client's request came in, in seconds of `time.monotonic()`.
        max_output_tokens: the server's cap on any one choice's output; None is none.
        tenant: whose request it is.
        slo: its latency targets.
        priority: -10 to 10; the higher, the earlier among its tenant's.
        speculate: whether drafts may be verified for it.

    Raises:
        PromptTooLong: the prompt leaves no room for a token in the context.
        InvalidRequest: there is no prompt, a token id is out of range, or a choice's KV could never fit.
    """
    if not prompt:
        raise InvalidRequest("the prompt is empty: give at least one token", "prompt")
    _check_ids("prompt", prompt, capacity)
    _check_ids("stop_token_ids", params.stop_token_ids, capacity)
    if len(prompt) >= capacity.max_model_len:
        raise PromptTooLong(
            f"the prompt has {len(prompt)} tokens and the context holds {capacity.max_model_len}, output included: "
            f"shorten it to {capacity.max_model_len - 1} or less",
            "prompt",
        )
    if not -MAX_PRIORITY <= priority <= MAX_PRIORITY:
        raise InvalidRequest(f"priority must be {-MAX_PRIORITY} to {MAX_PRIORITY}, got {priority}", "priority")
    if (params.beams or 0) > capacity.vocabulary:
        raise InvalidRequest(
            f"beams must be at most {capacity.vocabulary}, the vocabulary, got {params.beams}", "beams"
        )
    params = replace(
        params,
        max_tokens=_resolve_max_tokens(len(prompt), params.max_tokens, capacity, max_output_tokens),
        seed=secrets.randbelow(DRAWN_SEEDS) if params.seed is None else params.seed,
    )
    return GenerateRequest(request_id, tuple(prompt), params, arrival, tenant, slo, priority, speculate)


def _check_ids(name: str, ids: Sequence[int], capacity: Capacity) -> None:
    if ids and not 0 <= min(ids) <= max(ids) < capacity.vocabulary:
        wrong = next(token for token in ids if not 0 <= token < capacity.vocabulary)
        raise InvalidRequest(f"{name}: token ids run from 0 to {capacity.vocabulary - 1}, got {wrong}", name)


def _resolve_max_tokens(prompt: int, asked: int | None, capacity: Capacity, cap: int | None) -> int:
    """The most output tokens of a choice: what was asked for, within the context and the server's cap.

    If nothing was asked for, the pages bound it too; if something was, a smaller pool must not silently change it.
    """
    room = capacity.max_model_len - prompt
    if cap is not None:
        room = min(room, cap)
    wanted = room if asked is None else min(asked, room)
    least = 1 if asked is None else wanted
    windows = capacity.windows or (None,) * len(capacity.pages)
    pages = min(n for n, window in zip(capacity.pages, windows, strict=True) if window is None)
    fits = pages * capacity.page_size + 1 - prompt  # the last token needs no slot: nothing is computed after it
    if fits < least:
        raise InvalidRequest(
            f"{prompt} prompt tokens and {least} output tokens need {-(-(prompt + least - 1) // capacity.page_size)} "
            f"KV pages of {capacity.page_size} tokens, and there are {pages}: ask for less, or start the engine with a "
            "larger kv_memory",
            "max_tokens" if fits > 0 else "prompt",
        )
    return min(wanted, fits)
