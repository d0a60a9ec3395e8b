"""A simulator: the real engine, with its scheduler, cache, cost model and forecast, on a clock that jumps.

Knows the engine's doors; has no model and never sleeps, so hours of traffic take seconds. The machine is a formula
with noise, of another shape than the engine's own cost model, which has to learn it.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pagoda.bench.outcomes import Outcome
from pagoda.bench.workloads import Ask, Run
from pagoda.config import SchedulerConfig
from pagoda.engine import Engine, validate
from pagoda.engine.cost import work_of
from pagoda.engine.speculation import Controller
from pagoda.engine.warm_up import warm_up_requests
from pagoda.errors import Overloaded, TargetMissed
from pagoda.obs.observer import NoObserver, Observer
from pagoda.plan import Capacity, Sampled, StepPlan, StepResult
from pagoda.types import SamplingParams, Slo, TokenEvent

VOCABULARY = 1 << 60
RUN_TOKENS = 1 << 24
"""Token ids of a run: so no two runs share one."""
_NO_TARGETS = Slo()


@dataclass(frozen=True, slots=True)
class Machine:
    """Seconds of a step; by default those of the default model on two cores, about."""

    step: float = 4e-3
    sampled: float = 4e-4
    row: float = 9e-4
    small_row: float = 3e-4
    """More for each of the first 32 rows, which share the reading of weights among few."""
    attended: float = 2.5e-7
    """Per row and position attended to."""
    noise: float = 0.04
    """Standard deviation of a step's relative error."""
    burst: float = 0.005
    """How many steps take three times as long, because of a neighbour."""

    def seconds(self, plan: StepPlan, draw: random.Random) -> float:
        """How long a step takes."""
        work = work_of(plan)
        exact = (
            self.step
            + self.sampled * work.sampled
            + self.row * work.rows
            + self.small_row * min(work.rows, 32)
            + self.attended * work.attended
        )
        slow = 3.0 if draw.random() < self.burst else 1.0
        return exact * slow * max(0.5, 1 + draw.gauss(0, self.noise))


class _Text:
    """Text that costs nothing."""

    stop_ids: frozenset[int] = frozenset()

    def detokenizer(self) -> _Text:
        return self

    def push(self, _: Sequence[int]) -> str:
        return ""

    def flush(self) -> str:
        return ""


class _Runner:
    """Steps take the machine's time, one after another; while one is waited for, requests go on arriving."""

    def __init__(self, simulation: Simulation, capacity: Capacity) -> None:
        self.capacity = capacity
        self._simulation = simulation
        self._free_at = 0.0

    def submit(self, plan: StepPlan) -> tuple[StepPlan, float, float]:
        """A plan, its end, and its seconds."""
        simulation = self._simulation
        seconds = simulation.machine.seconds(plan, simulation.draw)
        self._free_at = max(self._free_at, simulation.now) + seconds
        return plan, self._free_at, seconds

    def finish(self, handle: tuple[StepPlan, float, float]) -> StepResult:
        """Its end has come."""
        plan, end, seconds = handle
        self._simulation.until(end)
        sampled = tuple(Sampled(chunk.sequence, 7) for chunk in plan.chunks if chunk.samples)
        return StepResult(plan.number, sampled, seconds)


class Simulation:
    """Plays asks against an engine.

    Args:
        config: the scheduler's.
        pages: of the one KV group.
        page_size: token slots of a page.
        longest: most tokens of a sequence.
        slo: what every request asks for.
        check: whether to check every structure after each step (slow).
    """

    def __init__(
        self,
        config: SchedulerConfig | None = None,
        *,
        pages: int = 4096,
        page_size: int = 16,
        longest: int = 8192,
        slo: Slo = _NO_TARGETS,
        machine: Machine | None = None,
        seed: int = 0,
        observer: Observer | None = None,
        check: bool = False,
    ) -> None:
        self.now = self._start = 0.0
        self.machine = machine or Machine()
        self.draw = random.Random(seed)
        self._capacity = Capacity((pages,), page_size, longest, VOCABULARY, "simulated")
        self._slo = slo
        self._check = check
        self._runs: dict[str, int] = {}
        self._coming: deque[Outcome] = deque()
        self.engine = Engine(
            _Runner(self, self._capacity), _Text(), config or SchedulerConfig(), observer or NoObserver(),
            clock=lambda: self.now,
            speculation=Controller(),
        )  # fmt: skip

    def play(self, asks: Iterable[Ask]) -> list[Outcome]:
        """All of them to their ends, in order of arrival; before them, what a server does before it is ready."""
        if not self.engine.cost.steps:
            for request in warm_up_requests(self._capacity, self.now):
                self.engine.submit(request, lambda _: None)
            while self.engine.turn():
                pass
        self._start = self.now
        outcomes = [Outcome(ask, ask.at) for ask in sorted(asks, key=lambda ask: ask.at)]
        self._coming.extend(outcomes)
        self.until(self.now)
        while True:
            if self.engine.turn():
                if self._check:
                    self.engine.check()
            elif self._coming:
                self.until(max(self.now, self._start + self._coming[0].ask.at))
            else:
                return outcomes

    def until(self, time: float) -> None:
        """Let the clock go on; whoever arrives meanwhile submits."""
        while self._coming and self._start + self._coming[0].ask.at <= time:
            outcome = self._coming.popleft()
            self.now = max(self.now, self._start + outcome.ask.at)
            self._submit(outcome)
        self.now = max(self.now, time)

    def _submit(self, outcome: Outcome) -> None:
        ask = outcome.ask
        params = SamplingParams(max_tokens=ask.output, temperature=0, seed=0, ignore_eos=True)
        request = validate(
            [token for run in ask.prompt for token in self._tokens(run)], params, self._capacity,
            request_id=str(id(outcome)), arrival=self._start + ask.at, tenant=ask.key, slo=self._slo,
        )  # fmt: skip

        def sink(event: TokenEvent) -> None:
            if event.token_ids:
                outcome.times.append(self.now - self._start)
            outcome.ended += event.finish is not None
            outcome.cached_tokens += event.cached_tokens
            if event.timings is not None and event.timings.predicted is not None:
                outcome.predicted = event.timings.predicted

        try:
            self.engine.submit(request, sink)
        except TargetMissed as error:
            outcome.refused, outcome.predicted = "ttft_target", error.predicted_ms / 1000
        except Overloaded:
            outcome.refused = "overloaded"

    def _tokens(self, run: Run) -> range:
        name, length = run
        first = (1 + self._runs.setdefault(name, len(self._runs))) * RUN_TOKENS
        return range(first, first + length)
