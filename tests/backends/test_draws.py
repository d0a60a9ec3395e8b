"""Steps that sample: every backend against the sampling rule, token for token wherever the choice is settled.

Up to z all arithmetic is laid down to the bit; after it exp, log and sums may differ, so a choice that hangs on less
than 1e-5 is left out, and few are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from pagoda.backends import BACKENDS
from pagoda.backends.ops import Backend, Draw, Floats, KVGroup, KVLayer, Program, Step, StepOutput
from pagoda.backends.sampling import is_settled, likeliest, log_softmax, sample

from .cases import make_step, open_store, plain_step, run
from .compare import assert_same
from .formats import random_tensor
from .opening import cpu_variants, opened
from .test_sampling import draw
from .verbs import attention

CUTS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0},
    "nearly greedy": {"temperature": 1e-40},
    "plain": {},
    "cold": {"temperature": 0.3},
    "hot": {"temperature": 2.0},
    "top_k": {"top_k": 5},
    "top_k beyond": {"top_k": 100_000},
    "top_p": {"top_p": 0.9, "temperature": 0.8},
    "tiny top_p": {"top_p": 1e-6},
    "wide top_p": {"top_p": 0.9999},
    "min_p": {"min_p": 0.05},
    "full min_p": {"min_p": 1.0},
    "top_k, top_p, min_p": {"top_k": 40, "top_p": 0.8, "min_p": 0.1, "temperature": 1.3},
    "top_p, min_p": {"top_p": 0.7, "min_p": 0.02},
}
PENALTIES: dict[str, dict[str, Any]] = {
    "free": {},
    "repetition": {"repetition": 1.3},
    "rewarded": {"repetition": 0.7, "frequency": -0.5},
    "all penalties": {"repetition": 1.1, "frequency": 0.3, "presence": 0.7},
}


def given_logits(backend: Backend, vocabulary: int) -> Program:
    """A program whose logits are its input; it embeds, since that is how it knows its vocabulary."""
    table = backend.weight(random_tensor(np.random.default_rng(0), "q4_0", (vocabulary, 32)))

    def build(ops: Any) -> None:
        ops.output("R.x", ops.embed(table))
        ops.output("logits", ops.input("S.x", vocabulary, "S"))

    return backend.program(build)


def sample_rows(
    backend: Backend, logits: Floats, draws: Sequence[Draw], slots: Any, starts: Sequence[tuple[int, Any]] = ()
) -> StepOutput:
    """Draw from given logits, one row for each draw."""
    rows, vocabulary = logits.shape
    program = given_logits(backend, vocabulary)
    step = replace(
        make_step([(0, 1)] * rows, sampled=range(rows), inputs={"S.x": logits}),
        slots=np.array([d.slot for d in draws], np.int32),
        starts=tuple(starts),
    )
    return program.submit(backend.kv_store((), (), 16, "f32"), step, slots, draws).wait()


def make_logits(rng: np.random.Generator, rows: int, vocabulary: int) -> Floats:
    """Rows spread out, rows of few values (so that many tie), and rows of one high peak."""
    logits = (rng.standard_normal((rows, vocabulary)) * 3).astype(np.float32)
    logits[1::3] = np.rint(logits[1::3])
    logits[2::3, rng.integers(vocabulary)] += 10
    return logits


@pytest.mark.parametrize("name", BACKENDS)
@pytest.mark.parametrize("vocabulary", [1, 97, 1003])
@pytest.mark.parametrize("penalty", PENALTIES)
@pytest.mark.parametrize("cut", CUTS)
def test_tokens_follow_the_rule(name: str, vocabulary: int, penalty: str, cut: str) -> None:
    """Six sequences over four steps: what was drawn counts for the penalties of what comes after."""
    rng = np.random.default_rng(vocabulary)
    backend, rows = opened(name), 6
    slots = backend.slots()
    prompts = [rng.integers(0, vocabulary, n).astype(np.int32) for n in (1, 3, 50, 2, 9, 30)]
    outputs: list[list[int]] = [[] for _ in prompts]
    settled = 0
    for i in range(4):
        logits = make_logits(rng, rows, vocabulary)
        draws = [
            draw(**CUTS[cut], **PENALTIES[penalty], slot=s, seed=2**63 + s, choice=s % 2, position=50 + i, logprobs=3)
            for s in range(rows)
        ]
        got = sample_rows(backend, logits, draws, slots, list(enumerate(prompts)) if i == 0 else ())
        for s, (x, d) in enumerate(zip(logits, draws, strict=True)):
            if is_settled(x, d, prompts[s], outputs[s]):
                assert got.tokens[s] == sample(x, d, prompts[s], outputs[s]).token, (i, s)
                settled += 1
            assert got.logprobs[s] == pytest.approx(log_softmax(x)[got.tokens[s]], abs=1e-5)
            assert [t for t, _ in got.top[s]] == [t for t, _ in likeliest(x, 3)]
            assert [p for _, p in got.top[s]] == pytest.approx([p for _, p in likeliest(x, 3)], abs=1e-5)
            outputs[s].append(got.tokens[s])
    assert settled >= 20


@pytest.mark.parametrize("name", BACKENDS)
def test_a_large_vocabulary(name: str) -> None:
    rng = np.random.default_rng(1)
    logits = make_logits(rng, len(CUTS), 49_152)
    draws = [draw(**cut, slot=s, position=s) for s, cut in enumerate(CUTS.values())]
    backend = opened(name)
    got = sample_rows(backend, logits, draws, backend.slots(), [(s, np.zeros(1, np.int32)) for s in range(len(draws))])
    settled = [(t, sample(x, d).token) for t, x, d in zip(got.tokens, logits, draws, strict=True) if is_settled(x, d)]
    assert all(token == want for token, want in settled)
    assert len(settled) >= len(CUTS) - 1
    # Log-probabilities only where they are asked for.
    assert got.top == ((),) * len(CUTS)


def test_draws_are_the_same_everywhere() -> None:
    """Instruction sets, threads, and the other rows change no token and no bit of a log-probability."""
    rng = np.random.default_rng(2)
    logits = make_logits(rng, len(CUTS), 1003)
    penalties = PENALTIES["all penalties"]
    draws = [draw(**cut, **penalties, slot=s, position=s, logprobs=5) for s, cut in enumerate(CUTS.values())]
    starts = [(s, rng.integers(0, 1003, 40).astype(np.int32)) for s in range(len(draws))]
    results = []
    for _, backend in cpu_variants("int16"):
        whole = sample_rows(backend, logits, draws, backend.slots(), starts)
        results.append((whole.tokens, whole.logprobs, whole.top))
        slots = backend.slots()
        alone = [sample_rows(backend, x[None], [d], slots, [s]) for x, d, s in zip(logits, draws, starts, strict=True)]
        results.append(tuple(tuple(getattr(a, part)[0] for a in alone) for part in ("tokens", "logprobs", "top")))
    assert all(result == results[0] for result in results)


@pytest.mark.parametrize("name", [name for name in BACKENDS if name != "reference"])
@pytest.mark.parametrize("number", [np.nan, -np.inf, np.inf])
def test_logits_that_are_no_numbers_stay_within_the_vocabulary(name: str, number: float) -> None:
    """Damaged weights may give any token, and no access out of bounds."""
    backend = opened(name)
    logits = np.full((len(CUTS), 97), number, np.float32)
    draws = [draw(**cut, slot=s, logprobs=2) for s, cut in enumerate(CUTS.values())]
    got = sample_rows(backend, logits, draws, backend.slots(), [(s, np.zeros(1, np.int32)) for s in range(len(draws))])
    assert all(0 <= token < 97 for token in got.tokens)
    assert all(0 <= token < 97 for top in got.top for token, _ in top)


@pytest.mark.parametrize("name", BACKENDS)
def test_tokens_still_in_flight(name: str) -> None:
    """Six steps handed over at once, each reading the tokens of the one before, and a slot that changes hands."""
    backend, rng = opened(name), np.random.default_rng(3)
    table, head = (backend.weight(random_tensor(rng, "f32", (50, 32))) for _ in range(2))

    def build(ops: Any) -> None:
        x = ops.embed(table)
        y = ops.attend(x, x, x, KVLayer(0, 0, 2, 16, 0.25))
        ops.output("logits", ops.linear(ops.pick(ops.add(x, y)), head))

    prompts = {4: [3, 1, 4], 9: [1, 5, 9, 2, 6, 5]}
    outputs: dict[int, list[int]] = {4: [], 9: []}
    pages = (np.array([[0, 1, 2], [5, 4, 3]], np.int32),)

    def step_of(i: int, known: bool) -> Step:
        """Step i: the prompts, then one token of each, known or not."""
        before = {slot: len(prompt) for slot, prompt in prompts.items()}
        if i == 0:
            ids = [t for prompt in prompts.values() for t in prompt]
            step = make_step([(0, n) for n in before.values()], pages, [2, 8], np.array(ids, np.int32))
            starts = tuple((slot, np.array(prompt, np.int32)) for slot, prompt in prompts.items())
            return replace(step, slots=np.array([4, 9], np.int32), starts=starts)
        ids = [outputs[slot][-1] if known else -1 for slot in before]
        step = make_step([(n + i - 1, n + i) for n in before.values()], pages, [0, 1], np.array(ids, np.int32))
        return replace(step, slots=np.array([4, 9], np.int32))

    def draws_of(i: int) -> list[Draw]:
        params = {"temperature": 1.5, "presence": 1.0}
        return [draw(**params, slot=slot, seed=slot, position=len(prompt) + i) for slot, prompt in prompts.items()]

    program = backend.program(build)
    kv, slots = backend.kv_store([KVGroup(1, 2, 16)], [8], 4, "f32"), backend.slots()
    pending = [program.submit(kv, step_of(i, known=False), slots, draws_of(i)) for i in range(6)]
    again = replace(
        plain_step(3, [2], tables=(np.array([[6]], np.int32),), ids=np.array([8, 8, 8], np.int32)),
        slots=np.array([4], np.int32),
        starts=((4, np.array([8, 8, 8], np.int32)),),
    )
    pending.append(program.submit(kv, again, slots, [draw(slot=4, presence=2.0, temperature=0)]))
    got = [p.wait().tokens for p in pending]

    kv = backend.kv_store([KVGroup(1, 2, 16)], [8], 4, "f32")
    for i in range(6):
        logits = program.run(kv, replace(step_of(i, known=True), starts=(), slots=np.zeros(0, np.int32)))["logits"]
        for x, d in zip(logits, draws_of(i), strict=True):
            assert is_settled(x, d, prompts[d.slot], outputs[d.slot])
            outputs[d.slot].append(sample(x, d, prompts[d.slot], outputs[d.slot]).token)
        assert got[i] == (outputs[4][-1], outputs[9][-1])
    logits = program.run(kv, replace(again, starts=(), slots=np.zeros(0, np.int32)))["logits"]
    assert got[6] == (int(logits[0].argmax()),)


@pytest.mark.parametrize("name", BACKENDS)
def test_pages_are_copied_before_anything_is_computed(name: str) -> None:
    case = attention(16, 2, 1, [[(0, 5)], [(5, 8)]], 8)
    backend = opened(name)
    first = replace(case.steps[0], tables=(np.array([[0]], np.int32),))
    second = replace(case.steps[1], tables=(np.array([[1]], np.int32),))
    results = []
    for copies in ((), ((0, 0, 1, 5),)):
        kv = open_store(backend, replace(case, pages=2))
        run(backend, replace(case, steps=(first,)), kv)
        if not copies:
            kv.copy(0, 0, 1, 5)
        results.append(run(backend, replace(case, steps=(replace(second, copies=copies),)), kv))
    assert_same(results[1], results[0], "copied by the step")


@pytest.mark.parametrize("name", BACKENDS)
def test_draws_that_do_not_fit_are_refused(name: str) -> None:
    backend = opened(name)
    x = make_logits(np.random.default_rng(4), 2, 7)
    starts = [(s, np.zeros(1, np.int32)) for s in range(2)]
    program = given_logits(backend, 7)
    step = replace(plain_step(2, [0, 1], inputs={"S.x": x}), slots=np.zeros(1, np.int32), starts=tuple(starts))
    kv = backend.kv_store((), (), 16, "f32")
    with pytest.raises(ValueError, match="one draw is needed for each"):
        program.submit(kv, step, backend.slots(), [draw()]).wait()
    waiting = replace(step, ids=np.array([0, -1], np.int32))
    with pytest.raises(ValueError, match="a row waits for a token"):
        program.submit(kv, waiting, backend.slots(), [draw(), draw(slot=1)]).wait()
    # What was refused leaves nothing behind.
    assert len(program.submit(kv, step, backend.slots(), [draw(), draw(slot=1)]).wait().tokens) == 2
