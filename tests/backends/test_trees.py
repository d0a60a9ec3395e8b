"""Steps whose drafts are a tree: every backend verifies them as plain steps would have sampled, one token after the
other, whatever hangs beside the right path.
"""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from pagoda.backends import BACKENDS
from pagoda.backends.ops import Backend, Draw, KVGroup, KVLayer, Program, Step
from pagoda.cache import KVCache, PathStart
from pagoda.config import KV_FORMATS
from pagoda.plan import Chunk, SequenceStart, StepPlan, tree_paths
from pagoda.runner.batch import Batcher
from pagoda.types import SamplingParams
from trees import random_tree, walk

from .formats import random_tensor
from .opening import cpu_variants, opened

VOCABULARY = 50
PROMPTS = ((3, 1, 4), (1, 5, 9, 2, 6, 5), tuple(range(40)))
PARAMS = SamplingParams(
    temperature=1.5, presence_penalty=1.0, repetition_penalty=1.2, frequency_penalty=0.5, logprobs=2
)
Line = list[tuple[int, float, tuple[tuple[int, float], ...]]]


class Machine:
    """A small model of two layers, one of which has a window, and three sequences; pages as the cache has them."""

    def __init__(self, backend: Backend, kv_format: str, page_size: int, temperature: float) -> None:
        rng = np.random.default_rng(3)
        table, head = (backend.weight(random_tensor(rng, "f32", (VOCABULARY, 32))) for _ in range(2))

        def build(ops: Any) -> None:
            x = ops.embed(table)
            x = ops.add(x, ops.attend(x, x, x, KVLayer(0, 0, 2, 16, 0.25)))
            x = ops.add(x, ops.attend(x, x, x, KVLayer(1, 0, 1, 32, 0.25, window=3)))
            ops.output("logits", ops.linear(ops.pick(x), head))

        self.program: Program = backend.program(build)
        pages = [64 // page_size * 12] * 2
        self.kv = backend.kv_store([KVGroup(1, 2, 16), KVGroup(1, 1, 32)], pages, page_size, kv_format)
        self.slots = backend.slots()
        self.cache = KVCache(pages, page_size)
        self.batcher = Batcher(2)
        self.lines: list[Line] = [[] for _ in PROMPTS]
        params = replace(PARAMS, temperature=temperature, seed=5)
        chunks, starts = [], []
        for i, prompt in enumerate(PROMPTS):
            self.cache.admit(i, prompt)
            copies = self.cache.extend(i, 0, len(prompt)).copies
            assert not copies
            chunks.append(Chunk(i, 0, prompt, self.cache.table(i), True))
            starts.append(SequenceStart(i, prompt, params, 0))
        self.run(StepPlan(1, tuple(chunks), tuple(starts)))

    def run(self, plan: StepPlan) -> None:
        """A step; what it gave joins the lines, and right paths their sequences."""
        step, draws = self.batcher.batch(plan)
        out = self.program.submit(self.kv, step, self.slots, draws).wait()
        news = iter(zip(out.tokens, out.logprobs, out.top, strict=True))
        for chunk, count in zip(plan.chunks, out.counts, strict=True):
            more = [next(news) for _ in range(count)]
            self.lines[chunk.sequence] += more
            if chunk.paths:
                self.cache.close_paths(chunk.sequence, chunk.path([token for token, _, _ in more]))
            self.cache.check()
        assert next(news, None) is None

    def verify(self, trees: dict[int, tuple[tuple[int, ...], tuple[int, ...]]]) -> None:
        """One step: the last token of each sequence that has a tree, and that."""
        chunks, copies = [], []
        for i, (tokens, parents) in trees.items():
            at = len(PROMPTS[i]) + len(self.lines[i]) - 1
            paths = tree_paths(parents)
            extension = self.cache.extend(i, at, at + 1 + (paths[0].end if paths else 0))
            starts = [PathStart(p.leaves, at + p.depth, at + 1 + p.end_depth) for p in paths[1:]]
            more = self.cache.open_paths(i, at, starts)
            assert extension.fits
            assert more.fits
            copies += [*extension.copies, *more.copies]
            ids = (self.lines[i][-1][0], *tokens)
            tables = tuple(self.cache.table(i, path) for path in range(1, len(paths)))
            chunks.append(Chunk(i, at, ids, self.cache.table(i), True, len(tokens), "tree", parents, tables))
            self.cache.check()
        self.run(StepPlan(2, tuple(chunks), copies=tuple(copies)))


def plainly(backend: Backend, kv_format: str, temperature: float, tokens: int) -> list[Line]:
    machine = Machine(backend, kv_format, 16, temperature)
    for _ in range(tokens):
        machine.verify({i: ((), ()) for i in range(len(PROMPTS))})
    return machine.lines


def through_trees(machine: Machine, want: list[Line], seed: int, tokens: int) -> tuple[int, int]:
    """Random trees until each sequence has so many tokens, with any of the sequences in a step; (right, all drafts)."""
    rng, right, drafts = random.Random(seed), 0, 0
    while left := [i for i, line in enumerate(machine.lines) if len(line) < tokens]:
        trees, true = {}, {}
        for i in sorted(rng.sample(left, rng.randint(1, len(left)))):
            line = [token for token, _, _ in want[i][len(machine.lines[i]) :]][:6]
            most = rng.randint(0, 12)
            true[i] = rng.randint(0, min(len(line) - 1, most))
            trees[i] = random_tree(rng, line, most, VOCABULARY, true[i])
            assert walk(*trees[i], line) == true[i]
        before = [len(line) for line in machine.lines]
        machine.verify(trees)
        for i, count in true.items():
            assert len(machine.lines[i]) == before[i] + count + 1
            assert machine.lines[i] == want[i][: len(machine.lines[i])]
        right += sum(true.values())
        drafts += sum(len(tree[0]) for tree in trees.values())
    return right, drafts


@pytest.mark.parametrize("name", BACKENDS)
@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("page_size", [1, 4, 16])
def test_trees_are_verified_as_plain_steps_sample(name: str, page_size: int, temperature: float) -> None:
    """Also the log-probabilities, bit for bit; and the right path's keys are the sequence's from then on."""
    backend = opened(name)
    want = plainly(backend, "f32", temperature, 40)
    right, drafts = through_trees(Machine(backend, "f32", page_size, temperature), want, page_size, 34)
    assert 20 < right < 0.6 * drafts


@pytest.mark.parametrize("kv_format", KV_FORMATS)
def test_whatever_the_pages_hold(kv_format: str) -> None:
    backend = opened("cpu")
    want = plainly(backend, kv_format, 0.8, 40)
    for seed, page_size in enumerate((2, 4, 8, 32)):
        through_trees(Machine(backend, kv_format, page_size, 0.8), want, seed, 34)


def test_whatever_computes_them() -> None:
    """Instruction sets and threads."""
    want = plainly(opened("cpu"), "f16", 0.8, 30)
    for seed, (_, backend) in enumerate(cpu_variants("int16")):
        through_trees(Machine(backend, "f16", 4, 0.8), want, seed, 24)


def tree_step(**changed: Any) -> tuple[Step, list[Draw]]:
    """Token 7 at position 3; after it 1 then 2, or 3: in two paths with pages of 4 slots."""
    step = Step(
        ids=np.array([7, 1, 2, 3], np.int32),
        positions=np.array([3, 4, 5, 4], np.int32),
        sequences=np.array([0, 0, 0, 1], np.int32),
        tables=tuple(np.array([[0, 1], [0, 2]], np.int32) for _ in range(2)),
        sampled=np.arange(4, dtype=np.int32),
        slots=np.zeros(2, np.int32),
        parents=np.array([-1, 0], np.int32),
    )
    return replace(step, **{name: np.array(x, np.int32) for name, x in changed.items() if name != "tables"}), [
        Draw(0, 1, 0, 4, 1.0, 1.0, 0.0, 1.0, 0.0, 0.0, 0, -1, drafts=3)
    ]


BAD = {
    "a parent for each": {"parents": [-1]},
    "no such row": {"parents": [-1, 4]},
    "itself": {"parents": [-1, 3]},
    "less than none": {"parents": [-2, 0]},
    "a later one": {"parents": [3, 0]},
    "another place": {"positions": [3, 4, 5, 5]},
    "of the wrong depth": {"parents": [-1, 2]},
    "another sequence": {"slots": [0, 1]},
    "no path": {"parents": [-1, -1]},
}


@pytest.mark.parametrize("name", BACKENDS)
@pytest.mark.parametrize("what", BAD)
def test_a_bad_tree_is_refused(name: str, what: str) -> None:
    machine = Machine(opened(name), "f32", 4, 0.0)
    step, draws = tree_step(**BAD[what])
    with pytest.raises(ValueError, match=r"path|parent|right after|one draw"):
        machine.program.submit(machine.kv, step, machine.slots, draws).wait()


@pytest.mark.parametrize("name", BACKENDS)
def test_two_paths_never_write_the_same_slot(name: str) -> None:
    machine = Machine(opened(name), "f32", 4, 0.0)
    step, draws = tree_step()
    machine.program.submit(machine.kv, step, machine.slots, draws).wait()
    shared = replace(step, tables=(step.tables[0], np.array([[0, 1], [0, 1]], np.int32)))
    with pytest.raises(ValueError, match="same slot"):
        machine.program.submit(machine.kv, shared, machine.slots, draws).wait()
    wild = replace(step, tables=(step.tables[0], np.array([[0, 1], [-7, 2]], np.int32)))
    with pytest.raises(ValueError, match=r"out of range|has pages"):
        machine.program.submit(machine.kv, wild, machine.slots, draws).wait()
