"""`LLM`: a model to call from Python, and `open_engine`, the one place where the rooms are wired together.

with LLM("smollm2") as llm:
    for completion in llm.generate(["One", "Two"], SamplingParams(max_tokens=16, seed=1)):
        print(completion.text)
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, aclosing, closing
from dataclasses import dataclass, field, fields
from itertools import count
from types import TracebackType
from typing import Any, Protocol, Self, TypedDict, Unpack

from pagoda.backends.machine import free_memory
from pagoda.backends.texts import NativeTexts
from pagoda.cache import Disk, KVCache
from pagoda.cache.kv_dir import KVDir
from pagoda.cache.page_file import Seal
from pagoda.cache.shelf import Shelf
from pagoda.catalog import AnyModel, Progress, api_name, open_model
from pagoda.completion import Completion, Gather, gather, raise_failure
from pagoda.config import MAX_CHUNK, EngineConfig, MachineConfig, ModelConfig, SchedulerConfig
from pagoda.engine import Engine, Runner, iterate, stream, validate
from pagoda.engine.speculation import controller
from pagoda.errors import InvalidConfig, InvalidRequest
from pagoda.explain import PrefixExplanation, explain_prefix
from pagoda.obs.observer import NoObserver, Observer
from pagoda.openings import Warming, read_openings
from pagoda.recommended import recommended
from pagoda.runner.load import load_runner
from pagoda.runner.runner import Runner as LoadedRunner
from pagoda.runner.sizing import Sizing, size
from pagoda.text.tokenizer import Tokenizer
from pagoda.types import GenerateRequest, SamplingParams, TokenEvent

KV_DIR_AUTO = 4 * 2**30
"""Bytes of `kv_dir_budget` if none is given and the disk has twice as many."""
_log = logging.getLogger(__name__)

Prompt = str | Sequence[int]
"""A text to be continued, or token ids as they stand."""
Message = Mapping[str, object]
"""`{"role": "user", "content": "..."}`"""


class EngineOptions(TypedDict, total=False):
    """What an engine can be told besides its model: the fields of `EngineConfig`'s parts, under the same names."""

    activations: str
    kv_format: str
    max_model_len: int | None
    quantize: str | None
    threads: int | None
    page_size: int
    kv_memory: int | None
    kv_dir: str | None
    kv_dir_budget: int | None
    max_num_seqs: int
    chunk: int | None
    steps_in_flight: int
    max_queued: int
    max_queued_tokens: int
    ttft_target_ms: float | None
    tpot_target_ms: float | None
    stall_s: float
    prefix_cache: bool
    warm: str | None
    speculate: str


def engine_config(model: str, **options: Unpack[EngineOptions]) -> EngineConfig:
    """The configuration that flat options mean.

    Raises:
        InvalidConfig: an option that does not exist, or a value out of its range.
    """
    rest: dict[str, Any] = {"model": model, **options}

    def take(part: Any) -> Any:
        return part(**{each.name: rest.pop(each.name) for each in fields(part) if each.name in rest})

    config = EngineConfig(take(ModelConfig), take(MachineConfig), take(SchedulerConfig))
    if rest:
        known = ", ".join(sorted(EngineOptions.__annotations__))
        raise InvalidConfig(f"there is no option {next(iter(rest))!r}; there are {known}")
    return config


class _Closable(Runner, Protocol):
    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Opened:
    """A started engine and what belongs to it."""

    engine: Engine
    tokenizer: Tokenizer
    name: str
    """The model's name in the API."""
    runner: _Closable
    sizing: Sizing | None = None
    """What was loaded, with its arithmetic; None for an engine that has no model."""
    recommended: Mapping[str, Any] = field(default_factory=dict)
    """Fields of `SamplingParams` as the model's makers recommend them."""

    def close(self, drain_s: float = 0.0) -> None:
        """Stop the engine, then free the runner's memory."""
        self.engine.close(drain_s)
        self.runner.close()


_NOBODY = NoObserver()


def open_engine(config: EngineConfig, observer: Observer = _NOBODY, progress: Progress | None = None) -> Opened:
    """Load the model and start an engine for it; a built-in model that is not here is fetched first.

    Raises:
        UnknownModel, ModelError, MemoryLimit: the model cannot be loaded here.
    """
    name = config.model.model
    with ExitStack() as undo, ExitStack() as files:
        directory = KVDir(config.machine.kv_dir) if config.machine.kv_dir is not None else None
        if directory is not None:
            undo.callback(directory.close)
        model_file = open_model(name, progress=progress, quantize=config.model.quantize)
        files.callback(model_file.close)
        kind, _, drafter_name = config.scheduler.speculate.partition(":")
        drafter: AnyModel | None = None
        if kind == "draft":
            drafter = open_model(drafter_name, progress=progress)
            files.callback(drafter.close)
        sizing = size(model_file, config, free_memory(), drafter)
        # Both at once: packing needs the cores but not the GIL, the tokenizer the GIL.
        with ThreadPoolExecutor(1) as beside:
            tokenizing = beside.submit(Tokenizer.from_metadata, model_file.metadata)
            runner = load_runner(model_file, config, sizing, drafter)
            tokenizer = tokenizing.result()
        open_disk = disk_of(runner, directory, config.machine.kv_dir_budget) if directory is not None else None
        speculation = controller(config.scheduler.speculate, NativeTexts())
        engine = Engine(runner, tokenizer, config.scheduler, observer, speculation=speculation, open_disk=open_disk)
        undo.pop_all()
    engine.start()
    for pinned in engine.pin_again():
        if error := pinned.exception():
            _log.warning("a prefix is not pinned again: %s", error)
    return Opened(engine, tokenizer, api_name(name), runner, sizing, recommended(model_file.metadata))


def disk_of(
    runner: LoadedRunner, directory: KVDir, budget: int | None
) -> Callable[[KVCache, Callable[[], None]], Disk]:
    """What makes the tier of an engine's cache, in a directory, and gives the runner its shelf."""
    has = runner.capacity
    identity = f"{has.fingerprint}, {has.layout}, {has.unit_bytes} bytes for {has.page_size} tokens"
    shelf = Shelf(directory, Seal(directory.key, identity), has.unit_bytes)

    def open_disk(cache: KVCache, wake: Callable[[], None]) -> Disk:
        shelf.wake = wake
        disk = Disk(cache, shelf, budget or min(KV_DIR_AUTO, directory.free() // 2))
        runner.shelf = shelf
        shelf.start()
        return disk

    return open_disk


class Stream(Iterator[TokenEvent]):
    """One request's events as they come. Close it, or leave its `with` block early, to cancel the request."""

    def __init__(self, request: GenerateRequest, events: Generator[TokenEvent, None, None], fingerprint: str) -> None:
        self.request = request
        """As the engine has it: with the seed and the length resolved."""
        self._events, self._fingerprint, self._whole = events, fingerprint, Gather(request)

    def __next__(self) -> TokenEvent:
        event = next(self._events)
        self._whole.add(event)
        return event

    def completion(self) -> Completion:
        """The whole answer, once the last event has been read."""
        return self._whole.completion(self._fingerprint)

    def close(self) -> None:
        """Cancel what is still open; there are no more events."""
        self._events.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


class LLM:
    """A loaded model. Usable from several threads at once; close it, or use it as a context manager.

    Args:
        model: A built-in name, the path of a .gguf file or of a Hugging Face directory, or a Hugging Face id.
        progress: Is told how far the download is, if there is one.
        options: See `EngineOptions`; each field is described in `pagoda.config`.

    Raises:
        InvalidConfig, UnknownModel, ModelError, MemoryLimit: the model cannot be loaded, or not be warmed, as asked.
    """

    def __init__(
        self, model: str = "smollm2", *, progress: Progress | None = None, **options: Unpack[EngineOptions]
    ) -> None:
        began = time.monotonic()
        options.setdefault("chunk", MAX_CHUNK)  # a program's prompts: what counts is how soon all are done
        self.config = engine_config(model, **options)
        warm = self.config.scheduler.warm
        openings = read_openings(warm) if warm is not None else []
        self._opened = open_engine(self.config, progress=progress)
        self._engine = self._opened.engine
        if warm is not None:
            try:
                Warming(self.tokenizer, openings, warm).run(self._engine)
            except BaseException:
                self._opened.close()
                raise
        self._ids = count()
        self._closed = False
        self.load_s = time.monotonic() - began
        """How long it took to load, in seconds."""

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer and chat template."""
        return self._opened.tokenizer

    @property
    def max_model_len(self) -> int:
        """Longest sequence, prompt and output together, in tokens."""
        return self._engine.capacity.max_model_len

    @property
    def recommended(self) -> SamplingParams:
        """How the model's makers would sample: what is used where no params are given."""
        return SamplingParams(**self._opened.recommended)

    @property
    def advice(self) -> Mapping[str, Any]:
        """The fields of `recommended` that the model's file has a word on."""
        return self._opened.recommended

    @property
    def system_fingerprint(self) -> str:
        """Of weights, formats and arithmetic: outputs are comparable within one fingerprint."""
        return self._engine.capacity.fingerprint

    def generate(
        self, prompts: Prompt | Sequence[Prompt], params: SamplingParams | Sequence[SamplingParams] | None = None
    ) -> list[Completion]:
        """Continue each prompt; all at once, answered in the prompts' order.

        Args:
            prompts: One prompt or several.
            params: For all prompts, or one for each; None is `recommended`.

        Raises:
            InvalidRequest: a prompt or parameter that cannot be served; nothing was generated.
            EngineDied: the engine failed, or was closed.
        """
        requests = self._requests(_listed(prompts), params)
        with closing(self._events(requests)) as events:
            return gather(requests, events, self.system_fingerprint)

    def chat(self, messages: Sequence[Message], params: SamplingParams | None = None) -> Completion:
        """Answer a conversation, written out by the model's chat template.

        Raises:
            InvalidRequest: malformed messages, or the model has no chat template.
            EngineDied: the engine failed, or was closed.
        """
        return self.generate(self.tokenizer.encode_chat(messages), params)[0]

    def explain(self, completion: Completion) -> PrefixExplanation | None:
        """How much of a completion's prompt was found in the cache, and why no more; None if it was never admitted."""
        cache, capacity = completion.choices[0].cache, self._engine.capacity
        if cache is None:
            return None
        speed = self._engine.prompt_token_s()
        return explain_prefix(self.tokenizer, completion.prompt, cache, capacity.pages_of, speed)

    def stream(self, prompt: Prompt | Sequence[Message], params: SamplingParams | None = None) -> Stream:
        """Events as they come, up to the last of each choice. Closing the stream cancels the request.

        Args:
            prompt: A text or token ids to be continued, or a conversation to be answered.
            params: How to sample, and when to stop.

        Raises:
            InvalidRequest: at once; nothing was generated.
            EngineDied: while iterating.
        """
        (request,) = self._requests([self._encoded(prompt)], params)
        return Stream(request, self._events([request]), self.system_fingerprint)

    async def agenerate(
        self, prompts: Prompt | Sequence[Prompt], params: SamplingParams | Sequence[SamplingParams] | None = None
    ) -> list[Completion]:
        """As `generate`, without blocking the event loop. Cancelling it cancels the requests."""
        requests = await asyncio.to_thread(self._requests, _listed(prompts), params)
        gate = asyncio.Semaphore(self.config.scheduler.max_queued)

        async def one(request: GenerateRequest) -> Completion:
            whole = Gather(request)
            async with gate, aclosing(stream(self._engine, request)) as events:
                async for event in events:
                    whole.add(event)
            return whole.completion(self.system_fingerprint)

        tasks = [asyncio.ensure_future(one(request)) for request in requests]
        try:
            return list(await asyncio.gather(*tasks))
        finally:
            for task in tasks:
                task.cancel()

    async def astream(
        self, prompt: Prompt | Sequence[Message], params: SamplingParams | None = None
    ) -> AsyncGenerator[TokenEvent, None]:
        """As `stream`, without blocking the event loop."""
        encoded = await asyncio.to_thread(self._encoded, prompt)
        (request,) = self._requests([encoded], params)
        async with aclosing(stream(self._engine, request)) as events:
            async for event in events:
                raise_failure(event)
                yield event

    def close(self) -> None:
        """End what is under way with an error, stop the engine and free its memory. A second call does nothing."""
        if not self._closed:
            self._closed = True
            self._opened.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _encoded(self, prompt: Prompt | Sequence[Message]) -> Sequence[int]:
        if isinstance(prompt, str):
            return self.tokenizer.encode_prompt(prompt)
        messages = [each for each in prompt if isinstance(each, Mapping)]
        if messages and len(messages) == len(prompt):
            return self.tokenizer.encode_chat(messages)
        return _token_ids(prompt)

    def _requests(
        self, prompts: Sequence[Prompt], params: SamplingParams | Sequence[SamplingParams] | None
    ) -> list[GenerateRequest]:
        arrival = time.monotonic()
        if params is None or isinstance(params, SamplingParams):
            params = [params or self.recommended] * len(prompts)
        if len(params) != len(prompts):
            raise InvalidRequest(
                f"there are {len(prompts)} prompts and {len(params)} params: give one for each", "params"
            )
        capacity = self._engine.capacity
        return [
            validate(self._encoded(prompt), each, capacity, request_id=f"llm-{next(self._ids)}", arrival=arrival)
            for prompt, each in zip(prompts, params, strict=True)
        ]

    def _events(self, requests: Sequence[GenerateRequest]) -> Generator[TokenEvent, None, None]:
        for event in iterate(self._engine, requests):
            raise_failure(event)
            yield event


def _token_ids(prompt: Sequence[object]) -> list[int]:
    ids = [each for each in prompt if isinstance(each, int) and not isinstance(each, bool)]
    if len(ids) < len(prompt):
        raise InvalidRequest(f"a prompt is a string, token ids or messages; got {prompt!r:.80}", "prompt")
    return ids


def _listed(prompts: Prompt | Sequence[Prompt]) -> Sequence[Prompt]:
    """One prompt as a list of one."""
    if isinstance(prompts, str):
        return [prompts]
    if prompts and isinstance(prompts[0], int):
        return [prompts]  # type: ignore[list-item]
    return prompts  # type: ignore[return-value]
