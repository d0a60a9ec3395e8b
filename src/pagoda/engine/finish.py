"""`Finish`: the one place where a token joins its sequence, becomes text, and may end it.

Ends, in this order: a stop token, a stop string, the sequence's limit (max_tokens or the end of the context), a loop,
if those are to be noticed. A stop token counts as a token and gives no text; a stop string is cut off, and so is what
follows it.
"""

from __future__ import annotations

from typing import NamedTuple

from pagoda.engine.doors import Tokenizer
from pagoda.engine.output import OutputText
from pagoda.engine.repetition import Loop
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
            sequence.loop = Loop(params.repetition_stop) if params.repetition_stop else None
        text, reason = self._read(sequence, sequence.text, sampled.token)
        logprobs = () if sampled.logprob is None else (sampled.logprob,)
        if reason is not None:
            event = last_event(sequence, reason, now, (sampled.token,), text, logprobs)
        else:
            event = TokenEvent(sequence.state.request.id, sequence.choice, (sampled.token,), text, logprobs)
        return News(sequence.state, event, gap)

    def ends(self, state: RequestState, tokens: tuple[int, ...]) -> bool:
        """Whether the last of a line's output tokens ends it, its limit aside."""
        stops = state.request.params.stop
        if tokens[-1] in state.stop_ids or not stops:
            return tokens[-1] in state.stop_ids
        text = OutputText(self._tokenizer, stops)
        return any([text.push(token)[1] for token in tokens])

    def spell(self, state: RequestState, tokens: tuple[int, ...]) -> tuple[str, FinishReason]:
        """The text of a finished line, and why it ended."""
        text, parts = OutputText(self._tokenizer, state.request.params.stop), list[str]()
        for token in tokens:
            if token in state.stop_ids:
                return "".join(parts) + text.flush()[0], FinishReason.STOP
            certain, stopped = text.push(token)
            parts.append(certain)
            if stopped:
                return "".join(parts), FinishReason.STOP
        rest, stopped = text.flush()
        return "".join(parts) + rest, FinishReason.STOP if stopped else FinishReason.LENGTH

    def _read(self, sequence: Sequence, text: OutputText, token: int) -> tuple[str, FinishReason | None]:
        """The text that this token makes certain, and the reason if it is the last one."""
        if token in sequence.state.stop_ids:
            return text.flush()[0], FinishReason.STOP
        certain, stopped = text.push(token)
        if stopped:
            return certain, FinishReason.STOP
        looped = sequence.loop is not None and sequence.loop.closes(sequence.output)
        if sequence.values < sequence.limit and not looped:
            return certain, None
        rest, stopped = text.flush()
        reason = FinishReason.LENGTH if sequence.values >= sequence.limit else FinishReason.REPETITION
        return certain + rest, FinishReason.STOP if stopped else reason


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
    timings, outlook = None, sequence.state.outlook
    if sequence.planned_at is not None and sequence.first_token_at is not None:
        queued, first = sequence.planned_at - request.arrival, sequence.first_token_at - request.arrival
        timings = Timings(
            queued, first, now - request.arrival, sequence.preemptions, None if outlook is None else outlook.predicted
        )
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
