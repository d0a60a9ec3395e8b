"""Plays requests: one sequence at a time through the bare runner, which is the baseline, or all through the engine.

Knows how a case's values become settings; compares nothing.
"""

from __future__ import annotations

import queue
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from pagoda.backends.cpu import CpuBackend, rope_table
from pagoda.cache.kv_dir import KVDir
from pagoda.catalog import open_model
from pagoda.config import SchedulerConfig
from pagoda.engine import Engine
from pagoda.engine.request import Sequence as Underway
from pagoda.engine.speculation import Controller
from pagoda.engine.speculation.drafter import Drafter, Guess
from pagoda.llm import disk_of
from pagoda.models import build, read_config
from pagoda.obs.observer import EngineState, NoObserver
from pagoda.plan import Capacity, Chunk, SequenceStart, StepPlan, StepResult, most_pages
from pagoda.runner.guessing import Guesser
from pagoda.runner.runner import Runner
from pagoda.types import FinishReason, GenerateRequest, SamplingParams, Slo, TokenEvent, TokenLogprob

Line = tuple[tuple[int, ...], tuple[TokenLogprob, ...]]
"""A sequence's output: tokens, and log-probabilities if they were asked for. Equal if every bit is."""
PLAIN_PAGE = 16
Pages = Callable[[int | None], int]
"""Pages of a KV group with this window, or with none."""


@dataclass(frozen=True)
class Ask:
    """A request before it has a name: what its output is a function of."""

    prompt: tuple[int, ...]
    params: SamplingParams
    tokens: int

    def request(self, name: str, policy: str = "no targets") -> GenerateRequest:
        params = replace(self.params, max_tokens=self.tokens, ignore_eos=True, seed=self.params.seed or 0)
        number = len(name) + len(self.prompt)
        if policy == "tenants":
            return GenerateRequest(name, self.prompt, params, 0.0, f"tenant {number % 3}")
        if policy == "no targets":
            return GenerateRequest(name, self.prompt, params, 0.0)
        slo = Slo(float(1 + number % 7), float(1 + number % 30), serve_late=True)
        return GenerateRequest(name, self.prompt, params, 0.0, "", slo, number % 5 - 2)

    def pages(self, page_size: int) -> int:
        """Pages that one choice needs at its end."""
        return -(-(len(self.prompt) + self.tokens) // page_size)


def prompt(length: int, vocabulary: int) -> tuple[int, ...]:
    """Any tokens, of which the first two thirds are the same for every length: prefixes that may be shared."""
    common, own = (np.random.default_rng(seed).integers(0, vocabulary, length).tolist() for seed in (0, (1, length)))
    shared = length * 2 // 3
    return (*common[:shared], *own[shared:])


@contextmanager
def opened(
    path: Path, kv_format: str, pages: Pages, page_size: int, longest: int = 512, own: bool = False, **backend: Any
) -> Iterator[Runner]:
    """A runner of a model file; `pages` says how many a KV group has, by its window, and `backend` are `CpuBackend`'s
    arguments. Drafts are guessed by the model's first layer, or by a model of the drafter's `own`, which is the same.
    """
    cpu = CpuBackend(**backend)
    with open_model(path) as source:
        model = build(source, read_config(source), cpu.weights, rope_table, longest)
    windows: list[int | None] = [group.window for group in model.groups]
    counts, all_kept = [pages(window) for window in windows], [pages(None)] * len(windows)
    store = cpu.kv_store(model.groups, counts, page_size, kv_format)
    if own:
        beside = cpu.kv_store(model.groups, all_kept, page_size, kv_format)
        guesser = Guesser(cpu, model, model.layers, beside, first_group=len(windows))
    else:
        guesser = Guesser(cpu, model, 1, store)
    identity = f"{path} {kv_format} {backend['activations']}"
    capacity = Capacity(
        (*counts, *all_kept * own), page_size, longest, model.vocabulary, identity, store.unit_bytes * (1 + own), "any",
        (*windows, *[None] * len(windows) * own),
    )  # fmt: skip
    runner = Runner(cpu, model, store, capacity, guesser)
    yield runner
    runner.check()
    runner.close()


class Plain:
    """One-at-a-time plain decoding: the whole prompt in one step, then a token a step, each waited for."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._groups = len(runner.capacity.pages)
        self._sequence = 0
        self._ended: tuple[int, ...] = ()

    def decode(self, ask: Ask, choice: int) -> Line:
        """The output of one choice."""
        request, sequence, self._sequence = ask.request(""), self._sequence, self._sequence + 1
        starts: tuple[SequenceStart, ...] = (SequenceStart(sequence, ask.prompt, request.params, choice),)
        computed, new, tokens, logprobs = 0, ask.prompt, [], []
        for _ in range(ask.tokens):
            pages = tuple(range(-(-(computed + len(new)) // PLAIN_PAGE)))
            plan = StepPlan(
                1, (Chunk(sequence, computed, new, (pages,) * self._groups, True),), starts, (), self._ended
            )
            (sampled,) = self._runner.finish(self._runner.submit(plan)).sampled
            starts, self._ended = (), ()
            computed, new = computed + len(new), (sampled.token,)
            tokens.append(sampled.token)
            if sampled.logprob is not None:
                logprobs.append(sampled.logprob)
        self._ended = (sequence,)
        return tuple(tokens), tuple(logprobs)


class NoText:
    """A tokenizer for which text does not matter."""

    stop_ids: frozenset[int] = frozenset()

    def detokenizer(self) -> NoText:
        return self

    def push(self, ids: Sequence[int]) -> str:
        return ""

    def flush(self) -> str:
        return ""


@dataclass
class Seen(NoObserver):
    """What the steps were like."""

    cases: int = 0
    preemptions: int = 0
    rows: Counter[int] = field(default_factory=Counter)
    """Steps by their number of rows, of those in which each sequence has its last token, and perhaps drafts."""
    copies: int = 0
    restored: int = 0
    """Pages read back from disk."""
    cached: int = 0
    """Prompt tokens whose KV was there."""
    ahead: int = 0
    """Chunks whose token was still in flight."""

    accepted: int = 0
    rejected: int = 0
    """Drafts."""
    paths: int = 0
    """Of trees, beside the first of each."""

    def stepped(self, plan: StepPlan, result: StepResult, state: EngineState) -> None:
        if plan.rows == len(plan.chunks) + plan.drafts:
            self.rows[plan.rows] += 1
        self.copies += len(plan.copies)
        self.paths += sum(len(chunk.paths) for chunk in plan.chunks)
        self.ahead += sum(chunk.tokens == (-1,) for chunk in plan.chunks)

    def preempted(self, request_id: str) -> None:
        self.preemptions += 1


class Knowing:
    """A drafter that knows what the baseline gave, and is wrong at every so many-th place."""

    name = "knowing"
    seconds = 0.0
    blind = False

    def __init__(self, outputs: Callable[[int, int], Sequence[int]], wrong: int | None) -> None:
        self._outputs = outputs
        self._wrong = wrong

    def look(self, sequences: Sequence[Underway]) -> None:
        pass

    def guess(self, sequence: Underway, most: int) -> Guess:
        output = self._outputs(int(sequence.state.request.id), sequence.choice)
        at = sequence.known - len(sequence.prompt)
        tokens = [t if self._wrong is None or i % self._wrong else int(t == 0) for i, t in enumerate(output)]
        guessed = tuple(tokens[at : at + most])
        return Guess(guessed, (0.5,) * len(guessed))

    def verified(self, sequence: Underway, asked: int, right: int) -> None:
        assert 0 <= right <= asked

    def forget(self, sequence: Underway) -> None:
        pass

    def check(self) -> None:
        pass


def through_engine(
    runner: Runner,
    asks: Sequence[Ask],
    config: SchedulerConfig,
    seen: Seen,
    arrival: str = "together",
    rounds: int = 1,
    drafters: Sequence[Drafter] = (),
    kv_dir: Path | None = None,
    policy: str = "no targets",
) -> list[dict[tuple[int, int], Line]]:
    """The outputs by (request, choice), of each round of the same requests through one engine, with a tier on disk if
    there is a directory for one.
    """
    open_disk = None if kv_dir is None else disk_of(runner, KVDir(kv_dir), None)
    drafts = Controller(drafters, always=True)
    engine = Engine(runner, NoText(), config, seen, speculation=drafts, open_disk=open_disk)
    lines = [_round(engine, asks, seen, arrival, policy, first=i == 0) for i in range(rounds)]
    if (report := engine.disk_report()) is not None:
        assert not report.faults
        seen.restored += report.restored
    engine.close()
    engine._roster.check()
    assert engine._roster.state().pages_used == 0
    return lines


def _round(
    engine: Engine, asks: Sequence[Ask], seen: Seen, arrival: str, policy: str, *, first: bool
) -> dict[tuple[int, int], Line]:
    """`arrival`: all at once, or each when the one before has its first token."""
    events: queue.SimpleQueue[TokenEvent] = queue.SimpleQueue()
    coming = iter([ask.request(str(i), policy) for i, ask in enumerate(asks)])
    for request in coming:
        engine.submit(request, events.put)
        if arrival == "one by one":
            break
    if first:
        engine.start()
    tokens: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
    logprobs: defaultdict[tuple[int, int], list[TokenLogprob]] = defaultdict(list)
    stops = {str(i): ask.params.stop_token_ids for i, ask in enumerate(asks)}
    left, met = sum(ask.params.n for ask in asks), set[str]()
    while left:
        event = events.get(timeout=60)
        key = (int(event.request_id), event.index)
        tokens[key].extend(event.token_ids)
        logprobs[key].extend(event.logprobs)
        seen.cached += event.cached_tokens
        seen.accepted += event.accepted_drafts
        seen.rejected += event.rejected_drafts
        if event.finish is not None:
            assert event.finish is FinishReason.LENGTH or event.token_ids[-1] in stops[event.request_id], event
            left -= 1
        if event.request_id not in met:
            met.add(event.request_id)
            for request in coming:
                engine.submit(request, events.put)
                break
    return {key: (tuple(tokens[key]), tuple(logprobs[key])) for key in tokens}


def scheduler(case: Mapping[str, Any], **more: Any) -> SchedulerConfig:
    """A case's values as settings."""
    return SchedulerConfig(
        chunk=case["chunk"], steps_in_flight=case["steps_in_flight"], prefix_cache=case["prefixes"] != "off", **more
    )


def page_count(case: Mapping[str, Any], asks: Sequence[Ask]) -> Pages:
    """Plenty for all, or what the largest sequence needs, so that others lose theirs to it."""

    def count(window: int | None) -> int:
        size, rows = case["page_size"], scheduler(case).rows
        each = [most_pages(window, len(ask.prompt) + ask.tokens, rows, size) for ask in asks]
        return max(each) if case["pages"] == "scarce" else sum(p * a.params.n for p, a in zip(each, asks, strict=True))

    return count
