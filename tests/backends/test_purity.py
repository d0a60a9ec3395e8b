"""What must not change a bit: instruction set, threads, the other rows, page size, chunks, what pages held before.

The native backend is held to equal bits. The reference promises tolerance only (its sums are NumPy's, whose order may
change with the number of rows), so it is held to that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import pytest

from pagoda.backends import BACKENDS
from pagoda.backends.ops import Ints, Step
from pagoda.config import ACTIVATIONS, KV_FORMATS

from .cases import UNREAD, Case, by_sequence, in_chunks, make_step, open_store, row_by_row, run, run_parts
from .compare import Results, assert_close, assert_same
from .opening import cpu_variants, opened
from .tiny import tiny_mixed, tiny_prompts
from .verbs import CASES, attention

MODELS = [
    *(tiny_prompts(), tiny_mixed(), tiny_prompts(4, "f32", 3), tiny_mixed(16, "int8"), tiny_mixed(4, "int4")),
    *(tiny_mixed(4, "f16", window=10), tiny_mixed(16, "int8", window=250)),
]
ALL = [
    *(("int16", case) for verb, cases in CASES.items() if verb != "linear" for case in cases),
    *((activations, case) for case in [*CASES["linear"], *MODELS] for activations in ACTIVATIONS),
]
CUTS: dict[str, Callable[[Step], Iterator[Ints]]] = {
    "by sequence": by_sequence,
    "in chunks": in_chunks(0),
    "in other chunks": in_chunks(1),
}


NATIVE = [name for name in BACKENDS if name != "reference"]
ATTENDING = [
    *((name, activations, case) for name in NATIVE for activations, case in ALL if case.groups),
    *(("reference", activations, case) for activations, case in ALL if case.groups and activations == "int16"),
]


def _same(name: str, case: Case, got: Results, want: Results, what: str) -> None:
    if name == "reference":
        assert_close(replace(case, tolerance=1e-5, elementwise=False), got, want)
    else:
        assert_same(got, want, what)


@pytest.mark.parametrize(("activations", "case"), ALL, ids=str)
def test_instruction_sets_and_threads(activations: str, case: Case) -> None:
    variants = cpu_variants(activations)
    _, scalar = next(variants)
    want = run(scalar, case)
    for what, backend in variants:
        assert_same(run(backend, case), want, what)


@pytest.mark.parametrize("name", NATIVE)
@pytest.mark.parametrize(("activations", "case"), ALL, ids=str)
def test_rows_alone(name: str, activations: str, case: Case) -> None:
    backend = opened(name, activations=activations)
    assert_same(run_parts(backend, case, row_by_row), run(backend, case), "row by row")


@pytest.mark.parametrize(("name", "activations", "case"), ATTENDING, ids=str)
def test_sequences_alone_and_in_chunks(name: str, activations: str, case: Case) -> None:
    backend = opened(name, activations=activations)
    want = run(backend, case)
    for what, cut in CUTS.items():
        _same(name, case, run_parts(backend, case, cut), want, what)


@pytest.mark.parametrize("name", BACKENDS)
@pytest.mark.parametrize("kv_format", KV_FORMATS)
def test_page_size_changes_nothing(name: str, kv_format: str) -> None:
    spans = [[(0, 15), (0, 258), (0, 33)], [(15, 18), (258, 259), (33, 64)]]
    makers: list[Callable[[int], Case]] = [
        lambda page_size: attention(80, 2, 3, spans, page_size, kv_format),
        lambda page_size: tiny_mixed(page_size, kv_format),
    ]
    for make in makers:
        want = run(opened(name), make(16))
        for page_size in (1, 4, 32, 512):
            _same(name, make(page_size), run(opened(name), make(page_size)), want, f"page size {page_size}")


@pytest.mark.parametrize("name", BACKENDS)
@pytest.mark.parametrize("page_size", [1, 4, 16, 64])
def test_pages_before_the_window_are_not_needed(name: str, page_size: int) -> None:
    """Given away: their entries in the table name no page, and what they held is not a number."""
    for kv_format in KV_FORMATS:
        case = attention(32, 1, 2, [[(0, 300)], [(300, 303)]], page_size, kv_format, window=30)
        want = run(opened(name), case)
        kv = open_store(opened(name), case)
        run(opened(name), replace(case, steps=case.steps[:1]), kv)
        step, gone = case.steps[1], (300 - 30 + 1) // page_size
        table = step.tables[0].copy()
        poison = make_step(
            [(0, gone * page_size)],
            (table[:, :gone],),
            inputs={key: np.full((gone * page_size, x.shape[1]), np.nan, np.float32) for key, x in step.inputs.items()},
        )
        run(opened(name), replace(case, steps=(poison,)), kv)
        table[:, :gone] = UNREAD
        got = run(opened(name), replace(case, steps=(replace(step, tables=(table,)),)), kv)
        _same(name, case, got, want[1:], f"{kv_format}, page size {page_size}")


@pytest.mark.parametrize("name", BACKENDS)
@pytest.mark.parametrize("length", [15, 16, 17, 255, 256, 257, 300])
def test_the_last_row_at_every_cut(name: str, length: int) -> None:
    """A prompt cut in two at each place near a multiple of 16 or 256 attends as the whole prompt does."""
    case = attention(32, 1, 3, [[(0, length)]], 4, "f16", seed=length)
    want = run(opened(name), case)
    rows = np.arange(length, dtype=np.int32)
    for cut in sorted({c + d for c in (16, 48, 256) for d in (-1, 0, 1) if 0 < c + d < length}):
        got = run_parts(opened(name), case, lambda _, cut=cut: iter((rows[:cut], rows[cut:])))
        _same(name, case, got, want, f"cut at {cut}")


@pytest.mark.parametrize("name", BACKENDS)
@pytest.mark.parametrize("kv_format", KV_FORMATS)
def test_what_pages_held_before_changes_nothing(name: str, kv_format: str) -> None:
    """Pages full of NaN from another sequence: slots past a row's position are never loaded into its sums."""
    for spans in ([[(0, 1)], [(1, 2)]], [[(0, 13), (0, 35)], [(13, 14), (35, 36)]], [[(0, 255)], [(255, 257)]]):
        for page_size in (4, 16, 32):
            case = attention(64, 2, 2, spans, page_size, kv_format)
            want = run(opened(name), case)
            slots = case.pages * page_size
            widths = {key: x.shape[1] for key, x in case.steps[0].inputs.items()}
            poison = make_step(
                [(0, slots)],
                (np.arange(case.pages, dtype=np.int32)[None],),
                inputs={key: np.full((slots, width), np.nan, np.float32) for key, width in widths.items()},
            )
            kv = open_store(opened(name), case)
            run(opened(name), replace(case, steps=(poison,)), kv)
            _same(name, case, run(opened(name), case, kv), want, f"page size {page_size}")
