"""`Engine`: the loop that turns requests into plans and results into events, on a thread of its own.

The walk: `submit` -> [schedule -> runner.submit, runner.finish -> finish.apply] -> sink. Knows neither HTTP nor arrays;
text only through `finish`.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from collections.abc import Sequence as Tokens
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial
from itertools import count, groupby
from operator import attrgetter

from pagoda.cache import KVCache, NoDisk
from pagoda.config import SchedulerConfig
from pagoda.engine.cost import StepCost
from pagoda.engine.doors import Runner, Tokenizer
from pagoda.engine.finish import Finish, News, last_event
from pagoda.engine.flights import Flight, Flights
from pagoda.engine.forecast import Forecast
from pagoda.engine.groups import Groups
from pagoda.engine.open_requests import OpenRequests
from pagoda.engine.pace import Pace
from pagoda.engine.pinning import Pinning
from pagoda.engine.request import RequestState, Sequence, Sink, Wake
from pagoda.engine.roster import Roster
from pagoda.engine.scheduler import Scheduler
from pagoda.engine.speculation import Controller
from pagoda.engine.watchdog import Watchdog
from pagoda.errors import EngineDied, Overloaded, TargetMissed
from pagoda.obs.observer import NoObserver, Observer
from pagoda.plan import Capacity, PageMove, StepResult
from pagoda.types import CacheReport, DiskReport, FinishReason, GenerateRequest, PinInfo, SamplingParams, Slo

_DEFAULTS = SchedulerConfig()
_NOBODY = NoObserver()
_CAUSES = {TargetMissed: "ttft_target", Overloaded: "overloaded", EngineDied: "engine_died"}
_FLUSH_S = 5.0
"""How long `close` may take to save what is in the cache."""
_DISK_S = 0.5
"""How often the loop looks whether patience with the disk ends."""
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
        clock: seconds; requests arrive on the same clock.
        speculation: who drafts; None: nobody.
        open_disk: makes the tier of the engine's cache; what it is given is to be called, from any thread, when it has
            news.
    """

    def __init__(
        self,
        runner: Runner,
        tokenizer: Tokenizer,
        config: SchedulerConfig = _DEFAULTS,
        observer: Observer = _NOBODY,
        on_death: Callable[[EngineDied], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
        speculation: Controller | None = None,
        open_disk: Callable[[KVCache, Callable[[], None]], NoDisk] | None = None,
    ) -> None:
        self.capacity: Capacity = runner.capacity
        self._runner = runner
        self._tokenizer = tokenizer
        self._config = config
        self._observer = observer
        self._on_death = on_death
        self._clock = clock
        size, longest = self.capacity.page_size, self.capacity.max_model_len
        self._cache = cache = KVCache(
            self.capacity.pages, size, config.prefix_cache, longest, self.capacity.windows, config.rows
        )
        self._ordered = threading.Condition()
        self._orders: list[Callable[[], object]] = []
        self._disk = open_disk(cache, self._wake) if open_disk else NoDisk()
        self._pinning = Pinning(cache, self.capacity, self.submit, self._disk)
        self._roster = Roster(cache, min(config.max_num_seqs, config.rows))
        self.cost = StepCost()
        pace = Pace(config, self.cost)
        self._speculation = speculation or Controller()
        self._scheduler = Scheduler(config, self._roster, cache, observer, pace, self._speculation, self._disk)
        self.forecast = Forecast(config, self.cost, pace, self._roster, size if config.prefix_cache else 0)
        self._groups = Groups(self._roster, Finish(tokenizer), self._end)
        self._requests = OpenRequests(config.max_queued, config.max_queued_tokens, observer)
        self._watchdog = Watchdog(self._requests, config.stall_s, self._die)
        self._ids = count()
        self._flights = Flights(self.cost)
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
            Overloaded: `max_queued` requests are open, or `max_queued_tokens` tokens of their prompts.
            TargetMissed: its TTFT target cannot be kept, as far as can be told, and it does not want to be late.
            EngineDied: the engine has stopped.
            InvalidRequest: a request of the same id is open.
        """
        stop_ids = frozenset[int]() if request.params.ignore_eos else self._tokenizer.stop_ids
        try:
            with self._ordered:
                found = self._cache.match(request.tenant, request.prompt).length
                outlook = self.forecast.assess(request, found, self._clock())
                self.forecast.refuse_late(request, outlook, len(self._requests), self._requests.tokens)
                state = RequestState(request, sink, self._ids, wake, stop_ids, self.capacity.max_model_len)
                state.outlook = outlook
                self._requests.add(state)
                self.forecast.coming(request, outlook, found)
                self._order(partial(self._accept, state, outlook.rank))
        except (Overloaded, EngineDied) as error:
            self._observer.refused(_CAUSES[type(error)])
            raise

    def refuse_early(self, tenant: str, slo: Slo, arrival: float) -> None:
        """Refuse what `submit` would refuse whatever the prompt: known before it is tokenised.

        Raises:
            Overloaded, TargetMissed: as `submit` has it, for a prompt of one token.
        """
        shortest = GenerateRequest("", (0,), SamplingParams(), arrival, tenant, slo)
        try:
            with self._ordered:
                self._requests.check_room(tenant, 1)
                outlook = self.forecast.assess(shortest, 0, self._clock())
                self.forecast.refuse_late(shortest, outlook, len(self._requests), self._requests.tokens)
        except Overloaded as error:
            self._observer.refused(_CAUSES[type(error)])
            raise

    def cancel(self, request_id: str) -> None:
        """End a request, if it is still open: its pages are free before the next step is planned."""
        with self._ordered:
            self._order(partial(self._cancel, request_id))

    def pin(self, prompt: Tokens[int], owner: str = "", shared: bool = True, name: str = "") -> Future[PinInfo]:
        """Compute a prefix and keep it until it is unpinned: for every tenant, or if not `shared`, for its owner.

        Pinning what the owner has pinned already gives that pin again.

        Returns:
            What was pinned, once it is. It fails with `MemoryLimit` if others were pinned meanwhile, and with
            `EngineDied`.

        Raises:
            InvalidRequest, PromptTooLong: as `validate`; also if the engine keeps no prefixes.
            MemoryLimit: it would leave too few pages for the longest sequence.
            Overloaded, EngineDied: as `submit`.
        """
        return self._pinning.pin(prompt, owner, shared, name)

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
            self._order(partial(self._unpin, pin))
        return True

    def pin_again(self) -> list[Future[PinInfo]]:
        """Pin, under their old numbers, the prefixes whose pins were on disk at the start."""
        return self._pinning.pin_again()

    def clear_cache(self) -> None:
        """Forget every prefix that is neither pinned nor in use, on disk too, before the next step is planned."""
        with self._ordered:
            self._order(partial(self._disk.clear, self._cache.clear))

    def prompt_token_s(self) -> float | None:
        """Seconds that computing a prompt's token takes, by the steps of late; None before the first such step."""
        return self.cost.token_s

    def cache_report(self) -> CacheReport:
        """What every KV page is used for, about now."""
        return replace(self._cache.report(), disk=self._disk.report())

    def disk_report(self) -> DiskReport | None:
        """What is on disk, if there is a tier."""
        return self._disk.report()

    def health(self) -> Health:
        """Whether it serves."""
        refusal = self._requests.refusal
        reason = str(refusal) if refusal else "" if self._thread.is_alive() else "the engine was not started"
        return Health(not reason, reason, len(self._roster.running), len(self._roster.waiting))

    def close(self, drain_s: float = 0.0) -> None:
        """Take no more requests, give the open ones so many seconds, end the rest, and stop.

        If they were given time, answers that have begun end with SHUTDOWN, else with an error as all others do.
        """
        error = EngineDied("the engine was closed")
        self._requests.refuse(error)
        self._requests.wait_for_none(drain_s)
        self._requests.fail(error, cut=drain_s > 0)
        self._watchdog.stop()
        with self._ordered:
            self._ordered.notify()
        if self._thread.is_alive():
            self._thread.join(self._config.stall_s)
        else:
            self._disk.close()
        self._watchdog.join()

    # The loop.

    def _run(self) -> None:
        try:
            while self._take_orders():
                self._step()
            while self._flights:  # closed: leave nothing half done with the runner
                self._runner.finish(self._flights.take().handle)
            self._disk.close(self._save, _FLUSH_S)
        except BaseException as error:  # whatever it was, everyone who waits must hear of it
            self._die(f"{type(error).__name__}: {error}", error)
            self._disk.close()

    def _take_orders(self) -> bool:
        """Carry out what other threads asked for, and sleep if there is nothing to do; False once all is over."""
        with self._ordered:
            while not (self._orders or self._roster.live or self._flights or self._requests.over or self._disk.busy):
                self._flights.idle()
                self._ordered.wait()
        self._carry_out()
        return not self._requests.over

    def _carry_out(self) -> None:
        with self._ordered:
            orders, self._orders = self._orders, []
        for order in orders:
            order()

    def turn(self) -> bool:
        """One round of the loop, by hand instead of `start`: for simulation. False if there is nothing to do."""
        self._carry_out()
        if not self._roster.live and not self._flights:
            return False
        self._step()
        return True

    def check(self) -> None:
        """Assert what must hold between two rounds of the loop."""
        self._roster.check()
        self.cost.check()
        self.forecast.check()

    def _step(self) -> None:
        """Hand over the next plan; finish the oldest if enough are in flight, or if nothing can be planned before."""
        while self._flights.drafting:
            self._apply(self._flights.take())
        plan = self._scheduler.schedule()
        while plan is None and not self._flights and (victim := self._roster.make_way()):
            self._observer.preempted(victim.state.request.id)
            plan = self._scheduler.schedule()
        if plan is not None:
            now = self._clock()
            for start in plan.starts:
                self._roster.live[start.sequence].planned_at = now
            self._flights.add(plan, self._runner.submit(plan), now)
            self._scheduler.commit(plan)
            self.forecast.planned(self._scheduler.load, self._flights.busy_until)
        elif not self._flights:
            self._wait_for_disk()
            return
        if plan is None or len(self._flights) >= self._config.steps_in_flight:
            self._apply(self._flights.take())

    def _wait_for_disk(self) -> None:
        """Nothing can be computed before pages have been read."""
        if self._roster.live:
            assert self._disk.restoring, "there is work, and neither is anything in flight nor can anything be planned"
            with self._ordered:
                if not (self._orders or self._requests.over or self._disk.busy):
                    self._ordered.wait(_DISK_S)

    def _save(self, moves: tuple[PageMove, ...]) -> StepResult:
        """On the way out: only save."""
        return self._runner.finish(self._runner.submit(self._scheduler.saving(moves)))

    def _apply(self, flight: Flight) -> None:
        """Wait for a plan, and send out what it produced."""
        result = self._runner.finish(flight.handle)
        self._watchdog.beat()
        now, news = self._clock(), list[News]()
        error, gap = self._flights.landed(flight, result, now)
        self._disk.measure(self.cost.token_s)
        if flight.plan.chunks:  # else it only moved pages
            self._speculation.finished(flight.plan, result, gap, flight.ahead)
        drafted = {chunk.sequence: chunk for chunk in flight.plan.chunks if chunk.drafts}
        for number, group in groupby(result.sampled, attrgetter("sequence")):
            sequence, tokens = self._roster.live.get(number), tuple(group)
            if sequence is None:  # it ended while this was in flight: stopped or cancelled
                continue
            right = sequence.arrived(len(tokens))
            if (chunk := drafted.get(number)) is not None:
                self._roster.verified(sequence, chunk, tokens)
                self._speculation.verified(sequence, chunk.drafter, chunk.drafts, right)
            for sampled in tokens:
                news.extend(self._groups.apply(sequence, sampled, now))
                if number not in self._roster.live:
                    break
        for state, event, since in news:
            if since is None or event.finish is not None:
                self.forecast.heard(state, event, first=since is None)
        self._send(news)
        self._observer.stepped(flight.plan, result, replace(self._roster.state(), step_error=error))

    def _end(self, sequence: Sequence) -> None:
        self._roster.end(sequence)
        self._speculation.forget(sequence)

    # Orders, and the end.

    def _order(self, order: Callable[[], object]) -> None:
        self._orders.append(order)
        self._ordered.notify()

    def _wake(self) -> None:
        """There is news from the disk: the loop hears of it when it plans."""
        with self._ordered:
            self._order(lambda: None)

    def _unpin(self, pin: int) -> None:
        self._cache.unpin(pin)
        self._disk.unpinned(pin)

    def _accept(self, state: RequestState, rank: float) -> None:
        self._observer.arrived(state.request)
        self._roster.add(state, rank)
        self.forecast.came(state.request.id)

    def _cancel(self, request_id: str) -> None:
        state = self._requests.get(request_id)
        if state is None:
            return
        self.forecast.gone(request_id)
        for sequence in state.sequences:
            if sequence.id in self._roster.live:
                self._end(sequence)
        now, left = self._clock(), sorted(state.unfinished)
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
