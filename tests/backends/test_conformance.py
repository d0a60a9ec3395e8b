"""Every verb on every backend, against the reference, within tolerance.

`linear` is compared alone: on equal inputs the int8 activations are equal integers, so its tolerance is that of f32
sums. Through a whole model they are not, since an f32 sum rounded the other way now and then moves an integer by one:
there the terms are looser.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from pagoda.backends import BACKENDS
from pagoda.backends.ops import Ops
from pagoda.config import ACTIVATIONS, KV_FORMATS
from pagoda.errors import MemoryLimit

from .cases import Case, open_store, plain_step, run
from .compare import assert_close, assert_same
from .opening import opened
from .tiny import tiny_mixed, tiny_prompts
from .verbs import CASES, attention

OTHERS = [name for name in BACKENDS if name != "reference"]
SIMPLE = [case for verb, cases in CASES.items() if verb != "linear" for case in cases]


def test_every_verb_has_cases() -> None:
    assert set(CASES) == {name for name in vars(Ops) if not name.startswith("_")}


@pytest.mark.parametrize("name", OTHERS)
@pytest.mark.parametrize("case", SIMPLE, ids=str)
def test_verb(name: str, case: Case) -> None:
    assert_close(case, run(opened(name), case), run(opened("reference"), case))


@pytest.mark.parametrize("name", OTHERS)
@pytest.mark.parametrize("activations", ACTIVATIONS)
@pytest.mark.parametrize("case", CASES["linear"], ids=str)
def test_linear(name: str, activations: str, case: Case) -> None:
    got, want = (run(opened(backend, activations=activations), case) for backend in (name, "reference"))
    assert_close(case, got, want)


# f32 sums differ by rounding alone. A key or value on the border between two f16 numbers may be stored as either, and
# an activation on the border between two integers may be read as either: fewer and fewer digits are left.
MODEL_TOLERANCE = {
    ("f32", "f32"): 2e-5,
    ("f32", "f16"): 1e-3,
    ("int16", "f32"): 1e-3,
    ("int16", "f16"): 1e-3,
    ("int8", "f32"): 0.1,
    ("int8", "f16"): 0.1,
}


@pytest.mark.parametrize("name", OTHERS)
@pytest.mark.parametrize(("activations", "kv_format"), MODEL_TOLERANCE)
@pytest.mark.parametrize("make", [tiny_prompts, tiny_mixed])
def test_model(name: str, activations: str, kv_format: str, make: Callable[..., Case]) -> None:
    case = replace(make(kv_format=kv_format), tolerance=MODEL_TOLERANCE[activations, kv_format])
    got, want = (run(opened(backend, activations=activations), case) for backend in (name, "reference"))
    assert_close(case, got, want)
    for output in ("R.hidden", "S.logits"):
        x, y = (np.concatenate([step[output] for step in steps]) for steps in (got, want))
        assert np.linalg.norm(x - y) < case.tolerance / 8 * np.linalg.norm(y)


@pytest.mark.parametrize("name", BACKENDS)
def test_outputs_are_copies(name: str) -> None:
    case = CASES["input"][2]
    backend = opened(name)
    program = backend.program(lambda ops: case.build(ops, []))
    first = program.run(open_store(backend, case), case.steps[0])
    kept = {key: x.copy() for key, x in first.items()}
    given = {key: x.copy() for key, x in case.steps[0].inputs.items()}
    other = replace(case.steps[0], inputs={key: x + 1 for key, x in given.items()})
    program.run(open_store(backend, case), other)
    assert_same([first], [kept], "the first result, after another run")
    for x in first.values():
        x += 1
    again = program.run(open_store(backend, case), case.steps[0])
    assert_same([again], [kept], "after writing into the first result")
    assert_same([case.steps[0].inputs], [given], "the step's own arrays")


@pytest.mark.parametrize("name", BACKENDS)
def test_one_program_takes_steps_of_any_size(name: str) -> None:
    """Large after small, small after large: nothing is left over from the step before."""
    cases = CASES["output"]
    backend = opened(name)
    program = backend.program(lambda ops: cases[0].build(ops, []))
    for i in (0, 2, 1, 2, 0):
        got = program.run(open_store(backend, cases[i]), cases[i].steps[0])
        assert_same([got], run(opened("reference"), cases[i]), cases[i].name)


@pytest.mark.parametrize("name", BACKENDS)
@pytest.mark.parametrize("kv_format", KV_FORMATS)
def test_copied_page_reads_as_its_source(name: str, kv_format: str) -> None:
    """A fork: copy the first 5 slots of a page, go on in the copy; the source is untouched, every layer is copied."""
    case = attention(64, 2, 3, [[(0, 5)], [(5, 8)], [(5, 8)]], 8, kv_format)
    first, second, third = case.steps
    fork = replace(third, tables=(np.array([[1]], np.int32),), inputs=second.inputs)
    first, second = (replace(step, tables=(np.array([[0]], np.int32),)) for step in (first, second))
    backend = opened(name)
    kv = open_store(backend, replace(case, pages=2))
    run(backend, replace(case, steps=(first,)), kv)
    kv.copy(0, 0, 1, 5)
    # The fork writes other rows into its own page before the source goes on: neither sees the other's.
    other = replace(fork, inputs=third.inputs)
    assert_close(
        case,
        run(backend, replace(case, steps=(other,)), kv),
        run(opened("reference"), replace(case, steps=(first, replace(other, tables=first.tables))))[1:],
    )
    source = run(backend, replace(case, steps=(second,)), kv)
    assert_same(run(backend, replace(case, steps=(fork,)), kv), source, "the fork, given the source's rows")
    assert_close(case, source, run(opened("reference"), replace(case, steps=(first, second)))[1:])


@pytest.mark.parametrize("name", BACKENDS)
def test_no_memory_for_pages(name: str) -> None:
    case = replace(attention(64, 1, 1, [[(0, 1)]]), pages=2**45)
    with pytest.raises(MemoryLimit, match=str(2**45)):
        open_store(opened(name), case)


@pytest.mark.parametrize("name", BACKENDS)
def test_nothing_sampled(name: str) -> None:
    """A step in which no prompt ends: every S value has no rows, through linear and norm too."""
    case = tiny_prompts()
    step = replace(case.steps[0], sampled=np.zeros(0, np.int32))
    backend = opened(name)
    (got,), (want,) = (run(backend, replace(case, steps=(s,))) for s in (step, case.steps[0]))
    assert got["S.logits"].shape == (0, want["S.logits"].shape[1])
    assert_same([{"R.hidden": got["R.hidden"]}], [{"R.hidden": want["R.hidden"]}], "hidden states")


@pytest.mark.parametrize("name", BACKENDS)
def test_missing_input_is_named(name: str) -> None:
    backend = opened(name)
    program = backend.program(lambda ops: ops.output("R.y", ops.input("R.absent", 4)))
    with pytest.raises(ValueError, match=r"R\.absent"):
        program.run(backend.kv_store((), (), 16, "f32"), plain_step(2))
