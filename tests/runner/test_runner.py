"""The runner on a tiny model: tokens in flight, log-probabilities, copied pages, slots that change hands; and the same
on the reference backend.
"""

from __future__ import annotations

import gc
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pagoda.backends import BACKENDS
from pagoda.backends.sampling import log_softmax
from pagoda.types import SamplingParams
from tiny import tiny_model

from .machine import Script, logits_of, open_runner

PROMPT = (7, 300, 12, 45, 45, 260, 3)
GREEDY = SamplingParams(temperature=0, seed=0)
WARM = SamplingParams(temperature=1.0, seed=3, presence_penalty=1.0, repetition_penalty=1.2, top_k=40, logprobs=2)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    shape = {"width": 96, "heads": 6, "kv_heads": 2, "head_dim": 32, "ffn": 160, "vocabulary": 331}
    return tiny_model(
        tmp_path_factory.mktemp("tiny"), **shape, formats={"attn_q.weight": "q8_0", "ffn_up.weight": "f16"}
    )


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("params", [GREEDY, WARM], ids=["greedy", "warm"])
def test_tokens_in_flight_are_those_waited_for(path: Path, backend: str, params: SamplingParams) -> None:
    """Six plans handed over before any is waited for, and the same six one by one with the tokens spelled out."""
    script = Script(open_runner(path, backend))
    script.start(1, PROMPT, params)
    script.start(2, PROMPT[:3], params)
    script.add(1, *PROMPT)
    script.add(2, *PROMPT[:2], samples=False)
    handles = [script.submit()]
    script.add(1)
    script.add(2, PROMPT[2])
    handles.append(script.submit())
    for _ in range(4):
        script.add(2)
        script.add(1)
        handles.append(script.submit())
    flown = [script.runner.finish(handle) for handle in handles]
    assert [result.number for result in flown] == [1, 2, 3, 4, 5, 6]
    assert [[s.sequence for s in result.sampled] for result in flown] == [[1], [1, 2], *[[2, 1]] * 4]

    script = Script(open_runner(path, backend))
    script.start(1, PROMPT, params)
    script.start(2, PROMPT[:3], params)
    script.add(1, *PROMPT)
    script.add(2, *PROMPT[:2], samples=False)
    waited = [script.step()]
    last = {s.sequence: s.token for s in waited[-1].sampled} | {2: PROMPT[2]}
    for order in ((1, 2), *[(2, 1)] * 4):
        for sequence in order:
            script.add(sequence, last[sequence])
        waited.append(script.step())
        last = {s.sequence: s.token for s in waited[-1].sampled}
    assert [result.sampled for result in flown] == [result.sampled for result in waited]
    assert len({s.token for result in flown for s in result.sampled}) > 3


def test_log_probabilities_are_those_of_the_raw_logits(path: Path) -> None:
    """Against float64, whatever the penalties and the temperature; none where none was asked for."""
    warm = SamplingParams(
        temperature=1.7, seed=1, logprobs=20, frequency_penalty=2, presence_penalty=2, repetition_penalty=5, top_k=50
    )
    script = Script(open_runner(path))
    for sequence, params in ((1, warm), (2, GREEDY)):
        script.start(sequence, PROMPT, params)
        script.add(sequence, *PROMPT)
    results, known = [script.step()], [*PROMPT]
    for _ in range(12):
        known.append(results[-1].sampled[0].token)
        script.add(1, known[-1])
        script.add(2, results[-1].sampled[1].token)
        results.append(script.step())
    want = log_softmax(logits_of(path, known, "f16"))[len(PROMPT) - 1 :]
    assert len(want) == len(results)
    for row, result in zip(want, results, strict=True):
        first, second = result.sampled
        assert second.logprob is None
        assert first.logprob is not None
        assert first.logprob.token_id == first.token
        assert first.logprob.logprob == pytest.approx(row[first.token], abs=2e-5)
        ids, values = zip(*first.logprob.top, strict=True)
        assert list(values) == pytest.approx(row[list(ids)], abs=2e-5)
        assert list(ids) == np.argsort(-row, kind="stable")[:20].tolist()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kv_format", ["f16", "f32"])
@pytest.mark.parametrize("page_size", [1, 4, 8])
@pytest.mark.parametrize("at", [1, 4, 5, 6])
def test_a_fork_goes_its_own_way(path: Path, backend: str, kv_format: str, page_size: int, at: int) -> None:
    """A child shares its parent's first pages, and either may write first: each goes on as if it were alone."""
    other = (*PROMPT[:at], *(1, 2, 3, 4)[: 7 - at])

    def alone(prompt: tuple[int, ...]) -> list[int]:
        script = Script(open_runner(path, backend, kv_format, page_size))
        script.start(1, prompt, GREEDY)
        script.add(1, *prompt)
        tokens = script.tokens()
        for _ in range(5):
            script.add(1, tokens[-1])
            tokens += script.tokens()
        return tokens

    for first, second in (("parent", "child"), ("child", "parent")):
        script = Script(open_runner(path, backend, kv_format, page_size))
        script.start(1, PROMPT, GREEDY)
        script.add(1, *PROMPT[:at], samples=False)
        script.step()
        script.fork(1, 2, at, other, GREEDY)
        rest = {"parent": (1, PROMPT[at:]), "child": (2, other[at:])}
        outputs: dict[int, list[int]] = {1: [], 2: []}
        copied = 0
        for name in (first, second):
            sequence, tokens = rest[name]
            script.add(sequence, *tokens)
            copied += len(script.copies)
            outputs[sequence] += script.tokens()
        assert copied == (at % page_size > 0), "one of the two copies the page they share in part"
        for _ in range(5):
            for sequence in outputs:
                script.add(sequence)
            for sampled in script.step().sampled:
                outputs[sampled.sequence].append(sampled.token)
        assert outputs == {1: alone(PROMPT), 2: alone(other)}


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_slot_is_empty_for_who_takes_it_next(path: Path, backend: str) -> None:
    """Penalties see the new sequence's tokens, not those of the one that had the slot before, even one in flight."""
    strong = SamplingParams(temperature=0, seed=0, presence_penalty=2, frequency_penalty=2, repetition_penalty=10)
    script = Script(open_runner(path, backend))
    script.start(1, PROMPT, strong)
    script.add(1, *PROMPT)
    handles = [script.submit()]
    for _ in range(5):
        script.add(1)
        handles.append(script.submit())
    script.end(1)
    script.start(2, PROMPT[:1], strong)
    script.add(2, *PROMPT[:1])
    handles.append(script.submit())
    for sequence in (3, 4):  # takes the slot of the first
        script.start(sequence, PROMPT, strong)
        script.add(sequence, *PROMPT)
    handles.append(script.submit())
    for _ in range(5):
        script.add(3)
        handles.append(script.submit())
    results = [script.runner.finish(handle) for handle in handles]
    tokens = [result.sampled[0].token for result in results]
    assert tokens[:6] == tokens[7:]
    assert len({*tokens[:6], *PROMPT}) == 6 + len(set(PROMPT)), "such penalties let nothing come twice"


@pytest.mark.parametrize("backend", BACKENDS)
def test_choices_of_one_request_differ_by_their_number_alone(path: Path, backend: str) -> None:
    params = SamplingParams(temperature=1.5, seed=5)
    script = Script(open_runner(path, backend))
    for sequence, choice in ((1, 0), (2, 1), (3, 0), (4, 2)):
        script.start(sequence, PROMPT, params, choice)
        script.add(sequence, *PROMPT)
    outputs = [script.tokens()]
    for _ in range(6):
        for sequence in (1, 2, 3, 4):
            script.add(sequence)
        outputs.append(script.tokens())
    first, second, again, third = zip(*outputs, strict=True)
    assert first == again
    assert len({first, second, third}) == 3


@pytest.mark.parametrize(
    ("activations", "kv_format", "near"), [("f32", "f32", 1e-4), ("int16", "f16", 5e-3), ("int8", "f16", 0.3)]
)
def test_native_and_reference_agree(path: Path, activations: str, kv_format: str, near: float) -> None:
    """Both are told the native tokens. Log-probabilities lie within `near`, and greedy tokens are equal wherever the
    reference's gap is over twice that; in f32 every token is equal, sampled ones too.
    """
    options: dict[str, Any] = {"activations": activations}
    scripts = [Script(open_runner(path, name, kv_format, **options)) for name in ("cpu", "reference")]
    asked = {
        1: SamplingParams(temperature=0, seed=0, logprobs=20),
        2: SamplingParams(temperature=1.2, seed=9, logprobs=20, top_p=0.9, min_p=0.01),
        3: SamplingParams(temperature=0.8, seed=9, logprobs=20, presence_penalty=0.5, repetition_penalty=1.1, top_k=30),
    }
    new = {sequence: PROMPT[: 2 * sequence + 1] for sequence in asked}
    for script in scripts:
        for sequence, params in asked.items():
            script.start(sequence, new[sequence], params)
    clear = 0
    for _ in range(20):
        for script in scripts:
            for sequence, tokens in new.items():
                script.add(sequence, *tokens)
        native, reference = (script.step().sampled for script in scripts)
        for got, want in zip(native, reference, strict=True):
            assert got.logprob is not None
            assert want.logprob is not None
            known = dict(want.logprob.top)
            shared = [(logprob, known[token]) for token, logprob in got.logprob.top if token in known]
            assert len(shared) >= 12
            assert max(abs(a - b) for a, b in shared) < near
            (_, first), (_, second) = want.logprob.top[:2]
            settled = got.sequence == 1 and first - second > 2 * near
            clear += settled
            if settled or activations == "f32":
                assert got.token == want.token
        new = {s.sequence: (s.token,) for s in native}
    assert clear >= 8


def test_a_step_that_cannot_be_is_an_error_of_its_handle(path: Path) -> None:
    """A row that waits for a token nobody sampled: the runner says so when it is finished, and goes on."""
    script = Script(open_runner(path))
    script.start(1, PROMPT, GREEDY)
    script.add(1, *PROMPT, samples=False)
    script.step()
    script.add(1)
    handle = script.submit()
    with pytest.raises(ValueError, match="waits for a token that no step has sampled"):
        script.runner.finish(handle)
    script.start(2, PROMPT, GREEDY)
    script.add(2, *PROMPT)
    assert len(script.tokens()) == 1


def test_closing_lets_pages_and_program_go(path: Path) -> None:
    """Though an engine still holds the runner."""
    runner = open_runner(path, "reference")
    held = [weakref.ref(runner._kv), weakref.ref(runner._program)]
    runner.close()
    gc.collect()
    assert [each() for each in held] == [None, None]
    runner.check()
