"""`Groups`: what comes of a sample if its request is answered as a whole: beams, and the best of several.

Knows sequences and events. Which beams live is `beams`' to say, which pages they have the roster's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from pagoda.engine.beams import BeamSearch, Hypothesis
from pagoda.engine.finish import Finish, News, last_event
from pagoda.engine.request import RequestState, Sequence
from pagoda.engine.roster import Roster
from pagoda.plan import Sampled
from pagoda.types import TokenEvent


class Groups:
    """Called on the engine's thread. Times are in seconds of `time.monotonic()`.

    Args:
        roster: who holds pages.
        finish: tokens to text and ends.
        end: forgets a sequence, in the roster and elsewhere.
    """

    def __init__(self, roster: Roster, finish: Finish, end: Callable[[Sequence], None]) -> None:
        self._roster = roster
        self._finish = finish
        self._end = end

    def apply(self, sequence: Sequence, sampled: Sampled, now: float) -> list[News]:
        """What one sample has to tell: nothing as yet, one sequence's news, or a whole answer."""
        state = sequence.state
        if state.beams is not None:
            return self._offer(state, state.beams, sequence, sampled, now)
        news = self._finish.apply(sequence, sampled, now)
        if news.event.finish is not None:
            self._end(sequence)
        if state.ballot is None:
            return [news]
        return [News(state, event, None) for event in state.ballot.take(news.event)]

    def _offer(
        self, state: RequestState, search: BeamSearch, sequence: Sequence, sampled: Sampled, now: float
    ) -> list[News]:
        """A beam has its candidates. Until all have, it stays parked: its newest token counts as in flight."""
        assert sampled.logprob is not None, "beams always ask for candidates"
        first = state.sequences[0]
        if first.first_token_at is None:
            first.first_token_at = now
        search.offer(sequence.choice, sampled.logprob.top)
        if not search.ready:
            return []
        self._roster.regroup(state, search.advance(lambda tokens: self._finish.ends(state, tokens)))
        if not search.done:
            return []
        for each in state.sequences:
            self._end(each)
        best = search.hypotheses[: state.request.params.n]
        return [News(state, self._event(state, index, line, now), None) for index, line in enumerate(best)]

    def _event(self, state: RequestState, index: int, line: Hypothesis, now: float) -> TokenEvent:
        first = state.sequences[0]
        text, reason = self._finish.spell(state, line.tokens)
        event = last_event(first, reason, now, line.tokens, text, line.entries)
        timings = event.timings and replace(
            event.timings, preemptions=sum(each.preemptions for each in state.sequences)
        )
        return replace(event, index=index, completion_tokens=len(line.tokens), timings=timings)
