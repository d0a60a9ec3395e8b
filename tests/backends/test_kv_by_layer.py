"""Layers of one KV group in different formats: each computes as in a store of its own format, and pages move whole."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from pagoda.backends import BACKENDS
from pagoda.backends.ops import KVGroup, KVLayer
from pagoda.errors import InvalidConfig

from .cases import Case, open_store, run
from .opening import opened
from .verbs import attention

FORMATS = ("int8", "int4", "f32", "f16")
DIM, HEADS = 40, 2


def at_layer(layer: int) -> Case:
    """Attention in one layer of four; 70 positions, then one more."""
    case = attention(DIM, HEADS, 2, [[(0, 70)], [(70, 71)]], page_size=4)

    def build(ops: Any, w: list[Any]) -> None:
        q, k, v = (ops.input(name, width) for name, width in (("R.q", 160), ("R.k", 80), ("R.v", 80)))
        ops.output("R.y", ops.attend(q, k, v, KVLayer(0, layer, HEADS, DIM, DIM**-0.5)))

    return replace(case, build=build, groups=(KVGroup(4, HEADS, DIM),), kv_format=(FORMATS,))


@pytest.mark.parametrize("name", BACKENDS)
@pytest.mark.parametrize("layer", range(4))
def test_as_in_a_store_of_its_own_format(name: str, layer: int) -> None:
    backend, case = opened(name), at_layer(layer)
    mixed, own = run(backend, case), run(backend, replace(case, kv_format=FORMATS[layer]))
    for got, want in zip(mixed, own, strict=True):
        assert np.array_equal(got["R.y"], want["R.y"])
    other = run(backend, replace(case, kv_format=FORMATS[layer - 1]))
    assert not np.array_equal(mixed[1]["R.y"], other[1]["R.y"])


@pytest.mark.parametrize("name", BACKENDS)
def test_pages_move_and_are_copied_with_all_their_layers(name: str) -> None:
    backend = opened(name)
    case = at_layer(0)
    store = open_store(backend, case)
    sizes = [open_store(backend, replace(case, kv_format=form)).unit_bytes for form in FORMATS]
    assert store.unit_bytes * 4 == sum(sizes)
    for layer in range(4):
        run(backend, replace(at_layer(layer), steps=case.steps[:1]), store)
    pages = [(page,) for page in range(case.pages)]
    saved, _ = backend.transfer(store, pages, []).wait()
    moved = open_store(backend, case)
    backend.transfer(moved, [], list(zip(pages, saved, strict=True))).wait()
    full = int(case.steps[0].tables[0][0, 0])
    spare = next(p for p in range(case.pages) if p not in case.steps[0].tables[0])
    moved.copy(0, full, spare, 4)
    table = np.where(case.steps[1].tables[0] == full, spare, case.steps[1].tables[0])
    for layer in range(4):
        case = at_layer(layer)
        (want,) = run(backend, replace(case, steps=case.steps[1:]), store)
        (got,) = run(backend, replace(case, steps=(replace(case.steps[1], tables=(table,)),)), moved)
        assert np.array_equal(got["R.y"], want["R.y"]), FORMATS[layer]


@pytest.mark.parametrize("name", BACKENDS)
def test_a_format_for_each_layer_is_needed(name: str) -> None:
    backend, group = opened(name), KVGroup(2, 1, 16)
    for wrong in ((), (("f16",),), (("f16", "f16", "f16"),), (("f16", "f16"), ("f16",))):
        with pytest.raises(ValueError, match="each layer"):
            backend.kv_store((group,), (1,), 4, wrong)
    with pytest.raises(InvalidConfig, match="int5"):
        backend.kv_store((group,), (1,), 4, (("f16", "int5"),))
