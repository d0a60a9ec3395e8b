"""The front desk: what handlers need to turn a parsed request into the engine's events.

Knows the engine's and the tokenizer's doors; knows nothing of JSON.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TYPE_CHECKING, TypeVar

from pagoda.completion import Completion, Gather
from pagoda.config import ServerConfig
from pagoda.engine.admission import validate
from pagoda.engine.streams import EventStream, stream
from pagoda.errors import Overloaded, PromptTooLong
from pagoda.explain import PrefixExplanation, explain_prefix
from pagoda.server.errors import HttpFailure
from pagoda.server.identity import Caller
from pagoda.server.limits import Meter, Ticket
from pagoda.types import CacheExplanation, GenerateRequest, SamplingParams, Slo, TokenEvent

if TYPE_CHECKING:
    from pagoda.engine.engine import Engine
    from pagoda.text.tokenizer import Tokenizer

T = TypeVar("T")
Events = AsyncGenerator[tuple[int, TokenEvent], None]
"""Events of the requests of one call, each with its request's place."""
TEXT_THREADS = 2
MAX_TEXT_JOBS = 1024
CHEAP_TEXT = 2**17
"""Characters that are tokenised without a thought: they take about a tenth of a second."""


class TextPool:
    """Tokenising and templating, off the event loop: a few threads and a bounded line before them."""

    def __init__(self, threads: int = TEXT_THREADS, limit: int = MAX_TEXT_JOBS) -> None:
        self._executor = ThreadPoolExecutor(threads, thread_name_prefix="pagoda-text")
        self._limit = limit
        self._jobs = 0

    async def run(self, work: Callable[[], T]) -> T:
        """The result of `work`, run on a thread. Cancelling drops it from the line.

        Raises:
            Overloaded: the line is full.
        """
        if self._jobs >= self._limit:
            raise Overloaded(f"{self._jobs} prompts wait to be tokenised, the most there may be: try again later")
        self._jobs += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._executor, work)
        finally:
            self._jobs -= 1

    def close(self) -> None:
        """Forget the line and let the threads end."""
        self._executor.shutdown(wait=False, cancel_futures=True)

    def check(self) -> None:
        """Assert that the count of jobs is within its bounds."""
        assert 0 <= self._jobs <= self._limit


@dataclass(frozen=True, slots=True)
class Order:
    """Who asks, where, and how urgently."""

    caller: Caller
    path: str
    slo: Slo
    priority: int
    speculate: bool = True

    @property
    def targets(self) -> Slo:
        """The request's, and for those it does not name the caller's."""
        own, usual = self.slo, self.caller.limits.slo
        ttft, tpot = (mine if mine is not None else its for mine, its in (
            (own.ttft_ms, usual.ttft_ms), (own.tpot_ms, usual.tpot_ms)
        ))  # fmt: skip
        return Slo(ttft, tpot, own.serve_late)


@dataclass(frozen=True, slots=True)
class Desk:
    """Everything the routes share."""

    engine: Engine
    tokenizer: Tokenizer
    model: str
    """The model's name in the API."""
    config: ServerConfig
    created: int
    """When the server started, in seconds of Unix time."""
    pool: TextPool = field(default_factory=TextPool)
    meter: Meter = field(default_factory=Meter)
    defaults: SamplingParams = field(default_factory=SamplingParams)
    """What holds where a request says nothing."""

    @property
    def fingerprint(self) -> str:
        """Of weights, formats and arithmetic."""
        return self.engine.capacity.fingerprint

    def check_model(self, name: str) -> None:
        """Raise 404 unless `name` is the model served here."""
        if name != self.model:
            message = f"there is no model {name!r} here; this server has {self.model!r}"
            raise HttpFailure(404, message, code="model_not_found", param="model")

    def refuse_hopeless(self, characters: int) -> None:
        """Raise PromptTooLong for a text that no tokens fit into the context: tokenising it would take seconds."""
        if characters <= CHEAP_TEXT:
            return
        room = self.engine.capacity.max_model_len
        longest = _longest_token(self.tokenizer)
        if characters > room * longest:
            raise PromptTooLong(
                f"the prompt has {characters} characters and the context holds {room} tokens, none of them longer than "
                f"{longest} bytes: shorten it",
                "prompt",
            )

    def admit(
        self,
        prompts: Sequence[Sequence[int]],
        params: SamplingParams,
        request_id: str,
        arrival: float,
        order: Order,
    ) -> list[GenerateRequest]:
        """Validated requests for the prompts of one call; a seed that must be drawn is drawn once for them all.

        Raises:
            InvalidRequest: a prompt or a parameter that the engine cannot serve.
        """
        admitted: list[GenerateRequest] = []
        for number, prompt in enumerate(prompts):
            name = request_id if len(prompts) == 1 else f"{request_id}-{number}"
            request = validate(
                prompt,
                params,
                self.engine.capacity,
                request_id=name,
                arrival=arrival,
                max_output_tokens=order.caller.limits.output_cap(order.path, self.config.max_output_tokens),
                tenant=order.caller.tenant,
                slo=order.targets,
                priority=order.priority,
                speculate=order.speculate,
            )
            params = replace(params, seed=request.params.seed)
            admitted.append(request)
        return admitted

    def events(self, requests: Sequence[GenerateRequest]) -> Events:
        """Submit all `requests`; their events as they come. Closing or dropping them cancels what is left.

        Raises:
            Overloaded, EngineDied: the engine does not take one of them; none goes on.
        """
        return merge([stream(self.engine, request) for request in requests])

    async def complete(self, requests: Sequence[GenerateRequest], events: Events) -> list[Completion]:
        """The whole answers. Cancelling it cancels the requests."""
        gathers = [Gather(request) for request in requests]
        async with aclosing(events):
            async for place, event in events:
                gathers[place].add(event)
        return [each.completion(self.fingerprint) for each in gathers]

    async def explain(
        self, requests: Sequence[GenerateRequest], caches: Sequence[CacheExplanation | None]
    ) -> list[PrefixExplanation | None]:
        """What was found of each request's prompt, and why no more; off the event loop, as a prompt may be long."""
        capacity, speed = self.engine.capacity, self.engine.prompt_token_s()

        def explained(request: GenerateRequest, cache: CacheExplanation | None) -> PrefixExplanation | None:
            if cache is None:
                return None
            return explain_prefix(self.tokenizer, request.prompt, cache, capacity.pages_of, speed)

        def all_of_them() -> list[PrefixExplanation | None]:
            return list(map(explained, requests, caches))

        return await asyncio.to_thread(all_of_them)


async def metered(events: Events, ticket: Ticket) -> Events:
    """Events as they are, counted on a ticket that is closed with them."""
    try:
        async with aclosing(events) as source:
            async for item in source:
                if item[1].finish is not None:
                    ticket.spend(item[1].completion_tokens)
                yield item
    finally:
        ticket.close()


@lru_cache(maxsize=4)
def _longest_token(tokenizer: Tokenizer) -> int:
    return max(len(tokenizer.token_bytes(token_id)) for token_id in range(tokenizer.vocabulary))


async def merge(streams: Sequence[EventStream]) -> Events:
    """Items of several streams as they come, each with its stream's place. Its end, whatever the cause, closes them."""
    if len(streams) == 1:  # the usual case needs no tasks
        async with aclosing(streams[0]) as only:
            async for item in only:
                yield 0, item
        return
    queue: asyncio.Queue[tuple[int, TokenEvent] | Exception | None] = asyncio.Queue()

    async def pump(place: int, source: EventStream) -> None:
        try:
            async with aclosing(source):
                async for item in source:
                    queue.put_nowait((place, item))
            queue.put_nowait(None)
        except Exception as error:
            queue.put_nowait(error)

    tasks = [asyncio.ensure_future(pump(place, source)) for place, source in enumerate(streams)]
    try:
        running = len(tasks)
        while running:
            news = await queue.get()
            if isinstance(news, Exception):
                raise news
            if news is None:
                running -= 1
            else:
                yield news
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
