"""Steps with drafts: every backend verifies them as plain steps would have sampled, one token after the other."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from pagoda.backends import BACKENDS
from pagoda.backends.ops import Backend, Draw, KVGroup, KVLayer, Program, Step, StepOutput

from .cases import make_step, plain_step
from .formats import random_tensor
from .opening import cpu_variants, opened
from .test_sampling import draw

VOCABULARY = 50
PROMPTS = {4: [3, 1, 4], 9: [1, 5, 9, 2, 6, 5]}
PAGES = (np.array([[0, 1, 2, 6], [5, 4, 3, 7]], np.int32),)
PARAMS: dict[str, Any] = {"temperature": 1.5, "presence": 1.0, "repetition": 1.2, "frequency": 0.5, "logprobs": 2}


class Machine:
    """A small model with a KV store and two sequences."""

    def __init__(self, backend: Backend) -> None:
        rng = np.random.default_rng(3)
        table, head = (backend.weight(random_tensor(rng, "f32", (VOCABULARY, 32))) for _ in range(2))

        def build(ops: Any) -> None:
            x = ops.embed(table)
            y = ops.attend(x, x, x, KVLayer(0, 0, 2, 16, 0.25))
            ops.output("logits", ops.linear(ops.pick(ops.add(x, y)), head))

        self.program: Program = backend.program(build)
        self.kv = backend.kv_store([KVGroup(1, 2, 16)], [8], 4, "f32")
        self.slots = backend.slots()
        ids = np.array([t for prompt in PROMPTS.values() for t in prompt], np.int32)
        step = make_step([(0, len(prompt)) for prompt in PROMPTS.values()], PAGES, [2, 8], ids)
        starts = tuple((slot, np.array(prompt, np.int32)) for slot, prompt in PROMPTS.items())
        self.computed = {slot: len(prompt) for slot, prompt in PROMPTS.items()}
        first = self.run(replace(step, starts=starts), [self.draw(slot, n) for slot, n in self.computed.items()])
        self.last = dict(zip(PROMPTS, first.tokens, strict=True))

    def draw(self, slot: int, position: int, drafts: int = 0) -> Draw:
        return replace(draw(**PARAMS, slot=slot, seed=slot, position=position), drafts=drafts)

    def run(self, step: Step, draws: list[Draw]) -> StepOutput:
        step = replace(step, slots=np.array([4, 9], np.int32))
        return self.program.submit(self.kv, step, self.slots, draws).wait()

    def verify(self, drafts: dict[int, list[int]]) -> dict[int, list[Any]]:
        """One step: each sequence's last token and its drafts. (token, log-probability, likeliest) of each."""
        ids = [t for slot in PROMPTS for t in (self.last[slot], *drafts[slot])]
        places = [(n, n + 1 + len(drafts[slot])) for slot, n in self.computed.items()]
        step = make_step(places, PAGES, range(len(ids)), np.array(ids, np.int32))
        out = self.run(step, [self.draw(slot, n + 1, len(drafts[slot])) for slot, n in self.computed.items()])
        given = iter(zip(out.tokens, out.logprobs, out.top, strict=True))
        got = {slot: [next(given) for _ in range(count)] for slot, count in zip(PROMPTS, out.counts, strict=True)}
        assert next(given, None) is None
        for slot, news in got.items():
            self.computed[slot] += len(news)
            self.last[slot] = news[-1][0]
        return got


def plainly(backend: Backend, steps: int) -> dict[int, list[Any]]:
    machine = Machine(backend)
    lines: dict[int, list[Any]] = {slot: [] for slot in PROMPTS}
    for _ in range(steps):
        for slot, news in machine.verify({slot: [] for slot in PROMPTS}).items():
            lines[slot] += news
    return lines


@pytest.mark.parametrize("name", BACKENDS)
@pytest.mark.parametrize("wrong_at", [None, 0, 1, 2, 3])
def test_drafts_are_verified_as_plain_steps_sample(name: str, wrong_at: int | None) -> None:
    """Also the log-probabilities, bit for bit; and what a wrong draft left behind is written over."""
    backend = opened(name)
    want = plainly(backend, 9)
    machine = Machine(backend)
    got: dict[int, list[Any]] = {slot: [] for slot in PROMPTS}
    counts = []
    while min(map(len, got.values())) < 5:
        drafts = {slot: [t for t, _, _ in want[slot][len(got[slot]) :][:4]] for slot in PROMPTS}
        if wrong_at is not None:
            for slot in (9,):
                drafts[slot] = [(t + (i == wrong_at)) % VOCABULARY for i, t in enumerate(drafts[slot])]
        drafts[4] = drafts[4][:2]
        news = machine.verify(drafts)
        counts.append(tuple(map(len, news.values())))
        for slot, more in news.items():
            got[slot] += more
    assert counts[0] == (3, 5 if wrong_at is None else wrong_at + 1)
    for slot, line in got.items():
        assert line[: len(want[slot])] == want[slot][: len(line)]


def test_they_are_the_same_everywhere() -> None:
    """Instruction sets and threads change no bit of it."""
    lines = [plainly(backend, 5) for _, backend in cpu_variants("f32")]
    assert all(line == lines[0] for line in lines)


@pytest.mark.parametrize("name", BACKENDS)
def test_guesses_of_an_earlier_step_are_drafts_of_a_later_one(name: str) -> None:
    """A step that samples into a slot of guesses, and one that verifies them, handed over before either has run."""
    backend = opened(name)
    want = plainly(backend, 3)
    machine = Machine(backend)
    at = dict(machine.computed)
    rows = np.arange(2, dtype=np.int32)
    begins = tuple((slot + 1, np.empty(0, np.int32)) for slot in PROMPTS)
    pending = []
    for i in range(2):
        step = plain_step(2, rows, tables=PAGES, ids=np.array([-1, -1], np.int32))
        step = replace(
            step,
            positions=np.array([n + i for n in at.values()], np.int32),
            sequences=rows,
            slots=np.array([slot + (i > 0) for slot in PROMPTS], np.int32),
            starts=begins if i == 0 else (),
        )
        draws = [replace(machine.draw(slot, n + 1 + i), slot=slot + 1, presence=0.0) for slot, n in at.items()]
        pending.append(machine.program.submit(machine.kv, step, machine.slots, draws))
    ids = np.array([-1, -2, -3] * 2, np.int32)
    step = replace(
        make_step([(n, n + 3) for n in at.values()], PAGES, range(6), ids),
        slots=np.array([4, 9], np.int32),
        guesses=np.array([5, 10], np.int32),
    )
    draws = [machine.draw(slot, n + 1, 2) for slot, n in at.items()]
    out = machine.program.submit(machine.kv, step, machine.slots, draws).wait()
    guesses = [p.wait().tokens for p in pending]
    first = 0
    for s, (slot, count) in enumerate(zip(PROMPTS, out.counts, strict=True)):
        tokens = out.tokens[first : first + count]
        assert list(tokens) == [t for t, _, _ in want[slot][:count]]
        right = [g[s] for g in guesses][: count - 1]
        assert right == list(tokens[: count - 1])
        assert count == 3 or guesses[count - 1][s] != tokens[-1]
        first += count


@pytest.mark.parametrize("name", BACKENDS)
def test_what_does_not_fit_is_refused(name: str) -> None:
    machine = Machine(opened(name))
    at = machine.computed
    step = make_step([(at[4], at[4] + 3), (at[9], at[9] + 1)], PAGES, range(4), np.array([1, 2, 3, 4], np.int32))
    for drafts in ((2, 1), (1, 0), (3, 0)):
        draws = [machine.draw(slot, at[slot] + 1, n) for slot, n in zip(PROMPTS, drafts, strict=True)]
        with pytest.raises(ValueError, match=r"one draw is needed|fewer sampled rows|right after"):
            machine.run(step, draws)
    waiting = replace(step, ids=np.array([1, -2, 3, 4], np.int32), guesses=np.array([7, 8], np.int32))
    draws = [machine.draw(slot, at[slot] + 1, n) for slot, n in zip(PROMPTS, (2, 0), strict=True)]
    with pytest.raises(ValueError, match="a row waits for a token"):
        machine.run(replace(waiting, starts=((7, np.zeros(1, np.int32)), (8, np.zeros(1, np.int32)))), draws)
