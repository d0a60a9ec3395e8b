"""`Engine`: the loop that turns requests into plans and results into events, on a thread of its own.

The walk: `submit` -> [schedule -> runner.submit, runner.finish -> finish.apply] -> sink. Knows neither HTTP nor arrays;
text only through `finish`.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Any

from pagoda.cache import KVCache
from pagoda.config import SchedulerConfig
from pagoda.engine.doors import Runner, Tokenizer
from pagoda.engine.finish import Finish, News, last_event
from pagoda.engine.groups import Groups
from pagoda.engine.open_requests import OpenRequests
from pagoda.engine.pinning import Pinning
from pagoda.engine.request import RequestState, Sink, Wake
from pagoda.engine.roster import Roster
from pagoda.engine.scheduler import Scheduler
from pagoda.engine.watchdog import Watchdog
from pagoda.errors import EngineDied, Overloaded
from pagoda.obs.observer import NoObserver, Observer
from pagoda.plan import Capacity, StepPlan
from pagoda.types import CacheReport, FinishReason, GenerateRequest, PinInfo

_DEFAULTS = SchedulerConfig()
_NOBODY = NoObserver()
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Health:
    """Whether the engine serves, and if not, why; how many sequences run (hold pages) and wait."""

    alive: bool
    reason: str
    running: int
    waiting: int


class Engine:
    """One runner's requests. All but the loop may be called from any thread.

    Args:
        runner: the machine room; called from the engine's thread only.
        tokenizer: turns output tokens into text.
        config: how steps are filled.
        observer: is told everything; `refused` on the thread that called `submit`.
        on_death: called once if the engine dies, after every request was ended; the process should exit non-zero.
    """

    def __init__(
        self,
        runner: Runner,
        tokenizer: Tokenizer,
        config: SchedulerConfig = _DEFAULTS,
        observer: Observer = _NOBODY,
        on_death: Callable[[EngineDied], None] | None = None,
    ) -> None:
        self.capacity: Capacity = runner.capacity
        self._runner = runner
        self._tokenizer = tokenizer
        self._config = config
        self._observer = observer
        self._on_death = on_death
        size, longest = self.capacity.page_size, self.capacity.max_model_len
        self._cache = cache = KVCache(self.capacity.pages, size, config.prefix_cache, longest)
        self._pinning = Pinning(cache, self.capacity, self.submit)
        self._roster = Roster(cache, config.max_num_seqs)
        self._scheduler = Scheduler(config, self._roster, cache, observer)
        self._groups = Groups(self._roster, Finish(tokenizer))
        self._requests = OpenRequests(config.max_queued, observer)
        self._watchdog = Watchdog(self._requests, config.stall_s, self._die)
        self._ids = count()
        self._ordered = threading.Condition()
        self._orders: list[Callable[[], object]] = []
        self._flights: deque[tuple[StepPlan, Any]] = deque()
        self._thread = threading.Thread(target=self._run, name="pagoda-engine", daemon=True)

    # From any thread.

    def start(self) -> None:
        """Begin to work."""
        self._watchdog.start()
        self._thread.start()

    def submit(self, request: GenerateRequest, sink: Sink, wake: Wake | None = None) -> None:
        """Take a request on.

        Its events go to `sink` on the engine's thread; it must be quick and not wait. `wake` is called once after the
        events of a step have been sent, however many of its requests share it.

        Raises:
            Overloaded: `max_queued` requests are open.
            EngineDied: the engine has stopped.
            InvalidRequest: a request of the same id is open.
        """
        stop_ids = frozenset[int]() if request.params.ignore_eos else self._tokenizer.stop_ids
        try:
            with self._ordered:
                state = RequestState(request, sink, self._ids, wake, stop_ids, self.capacity.max_model_len)
                self._requests.add(state)
                self._order(partial(self._accept, state))
        except Overloaded:
            self._observer.refused("overloaded")
            raise
        except EngineDied:
            self._observer.refused("engine_died")
            raise

    def cancel(self, request_id: str) -> None:
        """End a request, if it is still open: its pages are free before the next step is planned."""
        with self._ordered:
            self._order(partial(self._cancel, request_id))

    def pin(self, prompt: Sequence[int], owner: str = "") -> Future[PinInfo]:
        """Compute a prefix and keep it, for every tenant, until it is unpinned.

        Returns:
            What was pinned, once it is. It fails with `MemoryLimit` if others were pinned meanwhile, and with
            `EngineDied`.

        Raises:
            InvalidRequest, PromptTooLong: as `validate`; also if the engine keeps no prefixes.
            MemoryLimit: it would leave too few pages for the longest sequence.
            Overloaded, EngineDied: as `submit`.
        """
        return self._pinning.pin(prompt, owner)

    def list_pins(self) -> tuple[PinInfo, ...]:
        """All pins, oldest first."""
        return self._cache.pins()

    def unpin(self, pin: int) -> bool:
        """Let a pin go before the next step is planned: from then on its pages may be evicted. False if there is none
        of this number.
        """
        if all(info.id != pin for info in self.list_pins()):
            return False
        with self._ordered:
            self._order(partial(self._cache.unpin, pin))
        return True

    def cache_report(self) -> CacheReport:
        """What every KV page is used for, about now."""
        return self._cache.report()

    def health(self) -> Health:
        """Whether it serves."""
        refusal = self._requests.refusal
        reason = str(refusal) if refusal else "" if self._thread.is_alive() else "the engine was not started"
        return Health(not reason, reason, len(self._roster.running), len(self._roster.waiting))

    def close(self, drain_s: float = 0.0) -> None:
        """Take no more requests, give the open ones so many seconds, end the rest with an error, and stop."""
        error = EngineDied("the engine was closed")
        self._requests.refuse(error)
        self._requests.wait_for_none(drain_s)
        self._requests.fail(error)
        self._watchdog.stop()
        with self._ordered:
            self._ordered.notify()
        if self._thread.is_alive():
            self._thread.join(self._config.stall_s)
        self._watchdog.join()

    # The loop.

    def _run(self) -> None:
        try:
            while self._take_orders():
                self._step()
            while self._flights:  # closed: leave nothing half done with the runner
                self._runner.finish(self._flights.popleft()[1])
        except BaseException as error:  # whatever it was, everyone who waits must hear of it
            self._die(f"{type(error).__name__}: {error}", error)

    def _take_orders(self) -> bool:
        """Carry out what other threads asked for, and sleep if there is nothing to do; False once all is over."""
        with self._ordered:
            while not (self._orders or self._roster.live or self._flights or self._requests.over):
                self._ordered.wait()
            orders, self._orders = self._orders, []
        for order in orders:
            order()
        return not self._requests.over

    def _step(self) -> None:
        """Hand over the next plan; finish the oldest if enough are in flight, or if nothing can be planned before."""
        plan = self._scheduler.schedule()
        while plan is None and not self._flights and (victim := self._roster.make_way()):
            self._observer.preempted(victim.state.request.id)
            plan = self._scheduler.schedule()
        if plan is not None:
            for start in plan.starts:
                self._roster.live[start.sequence].planned_at = time.monotonic()
            self._flights.append((plan, self._runner.submit(plan)))
            self._scheduler.commit(plan)
        elif not self._flights:
            assert not self._roster.live, "there is work, and neither is anything in flight nor can anything be planned"
            return
        if plan is None or len(self._flights) >= self._config.steps_in_flight:
            self._apply(*self._flights.popleft())

    def _apply(self, plan: StepPlan, handle: Any) -> None:
        """Wait for a plan, and send out what it produced."""
        result = self._runner.finish(handle)
        self._watchdog.beat()
        now, news = time.monotonic(), list[News]()
        for sampled in result.sampled:
            sequence = self._roster.live.get(sampled.sequence)
            if sequence is not None:  # else it ended while this was in flight: stopped or cancelled
                news.extend(self._groups.apply(sequence, sampled, now))
        self._send(news)
        self._observer.stepped(plan, result, self._roster.state())

    # Orders, and the end.

    def _order(self, order: Callable[[], object]) -> None:
        self._orders.append(order)
        self._ordered.notify()

    def _accept(self, state: RequestState) -> None:
        self._observer.arrived(state.request)
        self._roster.add(state)

    def _cancel(self, request_id: str) -> None:
        state = self._requests.get(request_id)
        if state is None:
            return
        for sequence in state.sequences:
            if sequence.id in self._roster.live:
                self._roster.end(sequence)
        now, left = time.monotonic(), sorted(state.unfinished)
        ends = [last_event(state.sequences[index], FinishReason.CANCELLED, now) for index in left]
        self._send([News(state, event, None) for event in ends])

    def _send(self, news: list[News]) -> None:
        for request_id in self._requests.deliver(news):
            self.cancel(request_id)

    def _die(self, reason: str, cause: BaseException | None = None) -> None:
        error = EngineDied(f"the engine stopped: {reason}")
        error.__cause__ = cause
        if self._requests.fail(error):
            _log.critical("%s", error, exc_info=cause)
            self._watchdog.stop()
            if self._on_death is not None:
                self._on_death(error)
