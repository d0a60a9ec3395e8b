"""`Forecast`: when a request's first token will come, said when the request does.

Knows counts, ranks and predicted seconds; no pages, no text. The engine's thread tells it of each step; any thread may
ask. What it says is a model of the scheduler: the prompts ahead and the request's own go through steps that also carry
everyone's next token (`pace`); where all slots are taken, sequences must end first. What somebody before it is about to
compute it will find (`beginnings`). How far it is off is learned, and
both the middle and the upper end of what it says are corrected by that.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from pagoda.config import SchedulerConfig
from pagoda.engine.beginnings import Beginnings
from pagoda.engine.cost import StepCost, Work
from pagoda.engine.pace import LEAST_ROWS, Load, Pace
from pagoda.engine.request import RequestState
from pagoda.engine.roster import Roster
from pagoda.engine.urgency import PATIENCE_S, rank_of
from pagoda.errors import TargetMissed
from pagoda.types import GenerateRequest, TokenEvent

LEARNED = 16
"""Steps to be seen before anybody is refused for what is predicted."""
SURE = 0.95
"""Of the requests taken on, how many shall keep their target."""
RATE = 0.05
"""How quickly the corrections follow."""
CAUTION = math.log(1.3)
"""The upper correction before anything was seen."""
DOUBT = 0.001
"""Of the corrections, how much goes with each refusal."""
MOST = math.log(8.0)
"""Most that either may correct."""
USUAL_OUTPUT = 128.0
"""Tokens of an output before any was seen."""


@dataclass(frozen=True, slots=True)
class Outlook:
    """What awaits a request."""

    rank: float
    rows: int
    """Tokens of its prompt that it will have to compute."""
    predicted: float
    """TTFT in seconds."""
    late: float
    """TTFT in seconds that it will hardly exceed."""
    target: float | None
    """TTFT to keep, in seconds."""
    waited: float
    """Seconds since it arrived."""
    raw: float
    """Seconds from then on, before any correction."""


class Forecast:
    """Predicts TTFT, and learns how far it was off.

    Args:
        config: targets and slots.
        cost, pace: of steps.
        roster: what is under way.
        page_size: tokens of a page, whole ones of which requests share; 0 if they share none.
    """

    def __init__(self, config: SchedulerConfig, cost: StepCost, pace: Pace, roster: Roster, page_size: int) -> None:
        self._slots = min(config.max_num_seqs, config.rows)
        self._rows = config.rows
        self._target = None if config.ttft_target_ms is None else config.ttft_target_ms / 1000
        self._cost, self._pace, self._roster, self._queue = cost, pace, roster, roster.waiting
        self._load, self._busy_until = Load(), 0.0
        self._coming: dict[str, int] = {}
        self._beginnings = Beginnings(page_size)
        self._share = page_size > 0
        self._output = USUAL_OUTPUT
        self._middle, self._upper = 0.0, CAUTION
        self.error = 0.0
        """Mean relative error of the TTFTs predicted of late."""

    # From any thread.

    def assess(self, request: GenerateRequest, found: int, now: float) -> Outlook:
        """What awaits a request of whose prompt so many tokens are in the cache."""
        own = request.slo.ttft_ms
        target = self._target if own is None else own / 1000
        rows = len(request.prompt) - found
        alone = self._alone(rows, found)
        rank = rank_of(request, alone, target)
        if self._share:
            last = rank if target is not None else rank + PATIENCE_S
            found, first = self._beginnings.ahead(request.tenant, request.prompt, found, last)
            rows = len(request.prompt) - found
            alone = self._alone(rows, found)
            rank = max(rank_of(request, alone, target), first)
        waited = max(now - request.arrival, 0.0)
        raw = self._raw(request.tenant, rank, rows, found, now)
        rank = max(rank, rank_of(request, alone, target, raw))
        predicted = waited + raw * math.exp(self._middle)
        late = max(predicted, waited + raw * math.exp(self._upper))
        return Outlook(rank, rows, predicted, late, target, waited, raw)

    @property
    def learned(self) -> bool:
        """Whether enough was seen to refuse anybody."""
        return self._cost.steps >= LEARNED

    def coming(self, request: GenerateRequest, outlook: Outlook, found: int) -> None:
        """A request was taken on that the queue does not have yet; so many of its tokens are in the cache."""
        self._coming[request.id] = outlook.rows
        if self._share:
            self._beginnings.add(request.id, request.tenant, request.prompt, found, outlook.rank)

    def refuse_late(self, request: GenerateRequest, outlook: Outlook, requests: int, tokens: int) -> None:
        """Raise TargetMissed if a request's target will hardly be kept and it would rather hear so.

        What is never tried is never learned: so with each refusal the corrections are doubted a little.

        Args:
            requests, tokens: under way, for the message.
        """
        target, on_time = outlook.target, outlook.target is None or outlook.late <= outlook.target
        if target is None or on_time or request.slo.serve_late or self._cost.steps < LEARNED:
            return
        self._upper -= DOUBT * (self._upper - self._middle)
        self._middle -= DOUBT * self._middle
        raise TargetMissed(
            f"the first token would come after about {1000 * outlook.predicted:.0f} ms, perhaps "
            f"{1000 * outlook.late:.0f}, and the target is {1000 * target:.0f}: {requests} requests with {tokens} "
            "prompt tokens are under way; try again later, or send slo.on_miss serve to be served late",
            1000 * outlook.predicted, 1000 * target, requests, tokens,
        )  # fmt: skip

    # From the engine's thread.

    def came(self, request_id: str) -> None:
        """The queue has it."""
        self._coming.pop(request_id, None)

    def planned(self, load: Load, busy_until: float) -> None:
        """A plan was handed over; those in flight will be done at `busy_until`."""
        self._load, self._busy_until = load, busy_until

    def heard(self, state: RequestState, event: TokenEvent, *, first: bool) -> None:
        """A sequence's news: its first, its last, both or neither."""
        outlook, at = state.outlook, state.sequences[0].first_token_at
        if first and event.index == 0 and outlook is not None and at is not None:
            self.told(outlook, at - state.request.arrival)
        if event.finish is not None:
            self.ended(event.completion_tokens)
        if first or event.finish is not None:
            self._beginnings.remove(state.request.id)

    def gone(self, request_id: str) -> None:
        """A request was cancelled."""
        self._beginnings.remove(request_id)

    def told(self, outlook: Outlook, actual: float) -> None:
        """The first token of a request came, so many seconds after it arrived."""
        actual = max(actual, 1e-6)
        self.error += RATE * (min(abs(outlook.predicted - actual) / actual, 10.0) - self.error)
        ratio = math.log(max(actual - outlook.waited, 1e-6) / max(outlook.raw, 1e-6))
        self._middle = _within(self._middle + RATE * (0.5 if ratio > self._middle else -0.5))
        self._upper = _within(self._upper + RATE * (SURE if ratio > self._upper else SURE - 1))

    def ended(self, tokens: int) -> None:
        """A sequence ended with so many tokens."""
        self._output += RATE * (tokens - self._output)

    def check(self) -> None:
        """Assert that the corrections are within bounds, and what the beginnings' own check says."""
        self._beginnings.check()
        assert -MOST <= self._middle <= MOST
        assert -MOST <= self._upper <= MOST
        assert self._output >= 0

    def _alone(self, rows: int, found: int) -> float:
        """Seconds of a prompt's rows after those found, in a step of their own."""
        return self._cost.predict(Work(1, rows, rows * (found + (rows + 1) // 2)))

    def _raw(self, tenant: str, rank: float, rows: int, found: int, now: float) -> float:
        """Seconds from now, uncorrected."""
        load = self._load if self._roster.live else Load()
        sequences, own, others = self._queue.ahead(tenant, rank)
        coming = list(self._coming.values())
        sequences, own = sequences + len(coming), own + sum(coming) + load.begun
        ahead = own + min(others, own + rows)  # tenants take turns
        calm = self._cost.predict(Work(load.singles, load.singles, load.attended))
        each = self._cost.row(found + rows / 2)
        step = max(self._pace.allowed(load, calm), calm + LEAST_ROWS * each)
        fit = min(max((step - calm) / each, LEAST_ROWS), max(self._rows - load.singles, 1))
        step = calm + fit * each
        steps, rest = divmod(ahead + rows, fit)
        seconds = max(self._busy_until - now, 0.0) + steps * step + (calm + rest * each if rest else 0.0)
        free = 0 if load.crowded else self._slots - load.running
        endings = sequences + 1 - free
        if endings > 0 and load.running:
            turnover = endings * self._output * step / load.running
            seconds = max(seconds, turnover + calm + rows * each)
        return seconds


def _within(value: float) -> float:
    return max(-MOST, min(MOST, value))
