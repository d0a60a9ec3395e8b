"""KV groups of windows: one without layers has pages that are only numbers; tables have holes where nobody reads."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from pagoda.backends import BACKENDS
from pagoda.backends.ops import KVGroup

from .cases import Case, open_store, run
from .compare import assert_same
from .opening import opened
from .verbs import attention

EMPTY = KVGroup(0, 1, 32)


def case_of(spans: list[list[tuple[int, int]]], window: int | None, beside: KVGroup) -> Case:
    """Attention in the first of two groups; the other's pages are nobody's business."""
    case = attention(32, 1, 2, spans, 4, "f16", window=window)
    holes = np.full_like(case.steps[0].tables[0], -1)
    steps = tuple(replace(step, tables=(*step.tables, holes)) for step in case.steps)
    return replace(case, groups=(*case.groups, beside), steps=steps)


@pytest.mark.parametrize("name", BACKENDS)
@pytest.mark.parametrize("beside", [EMPTY, KVGroup(2, 1, 32, window=5)])
def test_a_group_that_no_layer_of_a_program_uses(name: str, beside: KVGroup) -> None:
    """The runner's drafter has the model's first layers only, and groups without layers are never read."""
    case = case_of([[(0, 20)], [(20, 23)]], None, beside)
    alone = attention(32, 1, 2, [[(0, 20)], [(20, 23)]], 4, "f16")
    assert_same(run(opened(name), case), run(opened(name), alone), f"beside {beside}")


@pytest.mark.parametrize("name", BACKENDS)
def test_pages_of_a_group_without_layers(name: str) -> None:
    """They can be copied and moved like others, and have no bytes."""
    backend = opened(name)
    some = backend.kv_store((KVGroup(2, 1, 32),), (3,), 4, "f16")
    store = backend.kv_store((EMPTY, KVGroup(2, 1, 32)), (9, 3), 4, "f16")
    assert store.unit_bytes == some.unit_bytes
    store.copy(0, 8, 2, 3)
    raw = np.random.default_rng(0).integers(0, 2, store.unit_bytes).astype(np.uint8)
    backend.transfer(store, [], [((8, 1), raw)]).wait()
    (back,), _ = backend.transfer(store, [(0, 1)], []).wait()
    assert back.tobytes() == raw.tobytes()
    with pytest.raises(ValueError, match=r"page|KV group"):
        backend.transfer(store, [(9, 1)], []).wait()


@pytest.mark.parametrize("name", BACKENDS)
def test_a_hole_in_a_window_is_refused(name: str) -> None:
    """Row 20 sees keys 13 to 20: pages 3 to 5 of four slots."""
    case = attention(32, 1, 2, [[(0, 20)], [(20, 21)]], 4, "f16", window=8)
    kv = open_store(opened(name), case)
    run(opened(name), replace(case, steps=case.steps[:1]), kv)
    step = case.steps[1]
    for hole in range(6):
        table = step.tables[0].copy()
        table[:, : hole + 1] = -1
        again = replace(case, steps=(replace(step, tables=(table,)),))
        if hole < 3:
            run(opened(name), again, kv)
        else:
            with pytest.raises(ValueError, match="page"):
                run(opened(name), again, kv)
