"""`Finish`: the one place where a token joins its sequence, becomes text, and may end it.

Ends, in this order: a stop token, a stop string, the sequence's limit (max_tokens or the end of the context). A stop
token counts as a token and gives no text; a stop string is cut off, and so is what follows it.
"""

from __future__ import annotations

from typing import NamedTuple

from pagoda.engine.doors import Tokenizer
from pagoda.engine.output import OutputText
from pagoda.engine.request import RequestState, Sequence
from pagoda.errors import PagodaError
from pagoda.plan import Sampled
from pagoda.types import FinishReason, Timings, TokenEvent, TokenLogprob


class News(NamedTuple):
    """An event on its way out."""

    state: RequestState
    event: TokenEvent
    gap: float | None
    """Seconds since the sequence's last token; None for its first, and for an end without a token."""


class Finish:
    """Applies what steps produced. Times are in seconds of `time.monotonic()`."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def apply(self, sequence: Sequence, sampled: Sampled, now: float) -> News:
        """Append a sequence's newest token."""
        sequence.output.append(sampled.token)
        gap = None if sequence.last_token_at is None else now - sequence.last_token_at
        sequence.last_token_at = now
        if sequence.text is None:
            sequence.first_token_at = now
            params = sequence.state.request.params
            sequence.text = OutputText(self._tokenizer, params.stop)
        text, reason = self._read(sequence, sequence.text, sampled.token)
        logprobs = () if sampled.logprob is None else (sampled.logprob,)
        if reason is not None:
            event = last_event(sequence, reason, now, (sampled.token,), text, logprobs)
        else:
            event = TokenEvent(sequence.state.request.id, sequence.choice, (sampled.token,), text, logprobs)
        return News(sequence.state, event, gap)

    def _read(self, sequence: Sequence, text: OutputText, token: int) -> tuple[str, FinishReason | None]:
        """The text that this token makes certain, and the reason if it is the last one."""
        if token in sequence.state.stop_ids:
            return text.flush()[0], FinishReason.STOP
        certain, stopped = text.push(token)
        if stopped:
            return certain, FinishReason.STOP
        if sequence.values < sequence.limit:
            return certain, None
        rest, stopped = text.flush()
        return certain + rest, FinishReason.STOP if stopped else FinishReason.LENGTH


def last_event(
    sequence: Sequence,
    reason: FinishReason,
    now: float,
    token_ids: tuple[int, ...] = (),
    text: str = "",
    logprobs: tuple[TokenLogprob, ...] = (),
    error: PagodaError | None = None,
) -> TokenEvent:
    """The event that ends a sequence; it has timings if there was a token."""
    request, cache = sequence.state.request, sequence.state.cache
    timings = None
    if sequence.planned_at is not None and sequence.first_token_at is not None:
        queued, first = sequence.planned_at - request.arrival, sequence.first_token_at - request.arrival
        timings = Timings(queued, first, now - request.arrival, sequence.preemptions)
    return TokenEvent(
        request_id=request.id,
        index=sequence.choice,
        token_ids=token_ids,
        text=text,
        logprobs=logprobs,
        finish=reason,
        prompt_tokens=len(request.prompt),
        completion_tokens=len(sequence.output),
        cached_tokens=cache.matched if cache else 0,
        cache=cache,
        timings=timings,
        accepted_drafts=sequence.accepted,
        rejected_drafts=sequence.rejected,
        error=error,
    )
