"""Pages moved out of a KV store and into another: the bytes are those that computing leaves, in every format."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from pagoda.backends import BACKENDS
from pagoda.backends.ops import Backend, KVGroup, KVStore
from pagoda.config import KV_FORMATS

from .cases import open_store, run
from .compare import assert_same
from .opening import opened
from .verbs import attention

GROUPS = (KVGroup(2, 2, 24), KVGroup(1, 3, 16))


def filled(backend: Backend, kv_format: str, seed: int = 0) -> KVStore:
    """Pages that hold anything."""
    store = backend.kv_store(GROUPS, (5, 4), 4, kv_format)
    rng = np.random.default_rng(seed)
    for page in range(4):
        raw = rng.integers(0, 2, store.unit_bytes).astype(np.uint8)
        backend.transfer(store, [], [((page, page), raw)]).wait()
    return store


def read(backend: Backend, store: KVStore, *units: tuple[int, int]) -> list[bytes]:
    return [raw.tobytes() for raw in backend.transfer(store, units, []).wait()[0]]


@pytest.mark.parametrize("kv_format", KV_FORMATS)
@pytest.mark.parametrize("name", BACKENDS)
def test_what_was_loaded_is_read_back_and_nothing_else_changes(name: str, kv_format: str) -> None:
    backend = opened(name)
    store = filled(backend, kv_format)
    before = read(backend, store, (0, 0), (1, 1), (2, 2), (3, 3))
    assert len(set(before)) == 4
    assert {len(raw) for raw in before} == {store.unit_bytes}
    raw = np.frombuffer(before[0], np.uint8)
    saved, seconds = backend.transfer(store, [(2, 3)], [((2, 3), raw)]).wait()
    assert seconds >= 0
    assert read(backend, store, (2, 3)) == [before[0]]
    assert read(backend, store, (0, 0), (1, 1)) == before[:2]
    mixed = saved[0].tobytes()
    assert mixed not in before, "page 2 of one group and page 3 of the other"
    back = np.frombuffer(mixed, np.uint8)
    backend.transfer(store, [], [((2, 3), back)]).wait()
    assert read(backend, store, (2, 2), (3, 3)) == before[2:]


@pytest.mark.parametrize("name", BACKENDS)
@pytest.mark.parametrize("unit", [(0,), (0, 4), (-1, 0), (5, 0), (0, 0, 0)])
def test_pages_that_are_not_there_are_refused(name: str, unit: tuple[int, ...]) -> None:
    backend = opened(name)
    store = filled(backend, "f16")
    with pytest.raises(ValueError, match=r"page|KV group"):
        backend.transfer(store, [unit], []).wait()
    with pytest.raises(ValueError, match=r"page|KV group"):
        backend.transfer(store, [], [(unit, np.zeros(store.unit_bytes, np.uint8))]).wait()


@pytest.mark.parametrize("name", BACKENDS)
def test_bytes_of_another_size_are_refused(name: str) -> None:
    backend = opened(name)
    store = filled(backend, "f16")
    with pytest.raises(ValueError, match=r"size|bytes"):
        backend.transfer(store, [], [((0, 0), np.zeros(store.unit_bytes - 1, np.uint8))])


@pytest.mark.parametrize("kv_format", KV_FORMATS)
@pytest.mark.parametrize("name", BACKENDS)
def test_attention_over_moved_pages_is_the_same(name: str, kv_format: str) -> None:
    """A second store gets the first step's pages by transfer, and computes the second step only."""
    backend = opened(name)
    case = attention(24, 2, 2, [[(0, 20)], [(20, 23)]], page_size=4, kv_format=kv_format)
    want = run(backend, case)[1]
    first = open_store(backend, case)
    run(backend, replace(case, steps=case.steps[:1]), first)
    units = [(page,) for page in range(case.pages)]
    saved, _ = backend.transfer(first, units, []).wait()
    second = open_store(backend, case)
    backend.transfer(second, [], list(zip(units, saved, strict=True))).wait()
    (got,) = run(backend, replace(case, steps=case.steps[1:]), second)
    assert_same([got], [want], "moved pages")
