"""A runner of a tiny model on any backend, and plans for it with page tables from the real cache."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from pagoda.backends import open_backend
from pagoda.backends.cpu import rope_table
from pagoda.backends.ops import Floats, Step
from pagoda.cache import KVCache
from pagoda.catalog import ModelFile
from pagoda.models import build, read_config
from pagoda.plan import LAST, Capacity, Chunk, PageCopy, SequenceStart, StepPlan, StepResult
from pagoda.runner.runner import Handle, Runner, whole_model
from pagoda.types import SamplingParams

PAGES, POSITIONS = 64, 256


def open_runner(path: Path, backend: str = "cpu", kv_format: str = "f16", page_size: int = 4, **options: Any) -> Runner:
    """A runner, without what a machine's memory has to say."""
    opened = open_backend(backend, **options)
    model = read_model(path, opened)
    capacity = Capacity((PAGES,), page_size, POSITIONS, model.vocabulary, "any")
    return Runner(opened, model, opened.kv_store(model.groups, [PAGES], page_size, kv_format), capacity)


def read_model(path: Path, backend: Any) -> Any:
    with ModelFile(path) as source:
        return build(source, read_config(source), backend.weights, rope_table, POSITIONS)


def logits_of(path: Path, ids: Sequence[int], kv_format: str, **options: Any) -> Floats:
    """The logits of every position of a sequence, on the native backend, with no runner in between: [n, V]."""
    backend = open_backend("cpu", **options)
    model = read_model(path, backend)
    program = backend.program(lambda ops: whole_model(model, ops))
    rows = np.arange(len(ids), dtype=np.int32)
    pages = np.arange(-(-len(ids) // 16), dtype=np.int32)[None]
    step = Step(np.array(ids, np.int32), rows, rows * 0, (pages,), rows)
    return program.run(backend.kv_store(model.groups, [pages.size], 16, kv_format), step)["logits"]


@dataclass
class Script:
    """Writes plans by hand: `add` chunks, then `submit` what was added."""

    runner: Runner
    cache: KVCache = field(init=False)
    computed: dict[int, int] = field(default_factory=dict)
    chunks: list[Chunk] = field(default_factory=list)
    starts: list[SequenceStart] = field(default_factory=list)
    copies: list[PageCopy] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    number: int = 0

    def __post_init__(self) -> None:
        self.cache = KVCache(self.runner.capacity.pages, self.runner.capacity.page_size)

    def start(self, sequence: int, prompt: Sequence[int], params: SamplingParams, choice: int = 0) -> None:
        self.starts.append(SequenceStart(sequence, tuple(prompt), params, choice))
        self.cache.admit(sequence, prompt)
        self.computed[sequence] = 0

    def fork(self, parent: int, child: int, at: int, prompt: Sequence[int], params: SamplingParams) -> None:
        """A child that shares the parent's pages of the first `at` positions."""
        self.starts.append(SequenceStart(child, tuple(prompt), params, 0))
        self.cache.fork(parent, child, at)
        self.computed[child] = at

    def add(self, sequence: int, *tokens: int, samples: bool = True) -> None:
        """A chunk; no tokens mean the one in flight."""
        at, tokens = self.computed[sequence], tokens or (LAST,)
        extension = self.cache.extend(sequence, at, at + len(tokens))
        assert extension.fits
        self.copies.extend(extension.copies)
        self.chunks.append(Chunk(sequence, at, tokens, self.cache.table(sequence), samples))
        self.computed[sequence] = at + len(tokens)

    def end(self, sequence: int) -> None:
        self.cache.release(sequence)
        self.ends.append(sequence)

    def submit(self) -> Handle:
        self.number += 1
        plan = StepPlan(self.number, tuple(self.chunks), tuple(self.starts), tuple(self.copies), tuple(self.ends))
        self.chunks, self.starts, self.copies, self.ends = [], [], [], []
        handle = self.runner.submit(plan)
        self.runner.check()
        self.cache.check()
        return handle

    def step(self) -> StepResult:
        """Submit and wait."""
        result = self.runner.finish(self.submit())
        assert result.number == self.number
        return result

    def tokens(self) -> list[int]:
        """Submit, wait, and read the tokens."""
        return [s.token for s in self.step().sampled]
