"""From a file to a runner: how many pages, what is refused, and what the fingerprint is of."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pagoda.backends.cpu import CpuBackend
from pagoda.backends.ops import KVGroup
from pagoda.catalog import ModelFile
from pagoda.config import EngineConfig, MachineConfig, ModelConfig, SchedulerConfig
from pagoda.errors import InvalidConfig, MemoryLimit, ModelFileError
from pagoda.plan import Capacity
from pagoda.runner import load
from pagoda.runner.load import kv_pages, load_runner, page_bytes
from tiny import tiny_model

GROUP = KVGroup(layers=3, heads=2, head_dim=24)
EACH = 3 * 2 * 16 * (24 + 32) * 2
"""Bytes of a page of 16 tokens of `GROUP` in f16: values are padded to whole vectors of 16."""


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Digests are remembered here."""
    monkeypatch.setenv("PAGODA_CACHE", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("tiny"))


def config(
    machine: dict[str, Any] | None = None, scheduler: dict[str, Any] | None = None, **model: Any
) -> EngineConfig:
    return EngineConfig(
        ModelConfig(**model), MachineConfig(**{"threads": 1, **(machine or {})}), SchedulerConfig(**(scheduler or {}))
    )


def capacity(path: Path, settings: EngineConfig) -> Capacity:
    with ModelFile(path) as source:
        return load_runner(source, settings).capacity


@pytest.mark.parametrize("kv_format", ["f16", "f32"])
@pytest.mark.parametrize("page_size", [1, 16])
@pytest.mark.parametrize("head_dim", [16, 24, 80, 6])
def test_a_page_takes_what_is_reckoned(kv_format: str, page_size: int, head_dim: int) -> None:
    group = KVGroup(2, 3, head_dim)
    store: Any = CpuBackend(threads=1).kv_store([group], [5], page_size, kv_format)
    assert store.bytes == 5 * page_bytes(group, page_size, kv_format)


def test_pages_for_every_sequence_if_memory_allows() -> None:
    """Each of `max_num_seqs` sequences at full length, and no more."""
    assert kv_pages((GROUP,), config(scheduler={"max_num_seqs": 4}), 100, 2**40) == (4 * 7,)
    assert kv_pages((GROUP, GROUP), config(scheduler={"max_num_seqs": 4}), 96, 2**40) == (4 * 6,) * 2


def test_pages_within_the_free_memory() -> None:
    assert kv_pages((GROUP,), config(), 2**20, 10 * EACH) == (6,)
    assert kv_pages((GROUP, GROUP), config(), 2**20, 10 * EACH) == (3, 3)


def test_pages_that_are_asked_for() -> None:
    assert kv_pages((GROUP,), config({"kv_memory": 5 * EACH + 1}), 2**20, 2**40) == (5,)
    assert kv_pages((GROUP,), config({"kv_memory": 5 * EACH}, kv_format="f32"), 2**20, 2**40) == (2,)
    assert kv_pages((GROUP,), config({"kv_memory": 5 * EACH, "page_size": 8}), 2**20, 2**40) == (10,)
    with pytest.raises(MemoryLimit, match=f"kv_memory asks for {8 * EACH} bytes, and KV may take {6 * EACH}"):
        kv_pages((GROUP,), config({"kv_memory": 8 * EACH}), 2**20, 10 * EACH)


def test_no_more_than_a_share_is_committed_unasked() -> None:
    most = load.KV_AUTO // EACH
    assert kv_pages((GROUP,), config(scheduler={"max_num_seqs": 64}), 2**20, 2**40) == (max(most, 2**20 // 16),)
    assert kv_pages((GROUP,), config(scheduler={"max_num_seqs": 10**6}), 2**10, 2**40) == (most,)


@pytest.mark.parametrize("machine", [{}, {"kv_memory": EACH - 1}])
def test_not_enough_memory_for_one_page(machine: dict[str, Any]) -> None:
    """What happened, the values, the way out."""
    free = EACH if not machine else 2**40
    with pytest.raises(
        MemoryLimit,
        match=rf"a KV page of 16 tokens takes {EACH} bytes, and \d+ are to be had .*{free} bytes free.*smaller page",
    ):
        kv_pages((GROUP,), config(machine), 100, free)


def test_a_machine_too_small_for_one_page(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same, from the door: the whole of `load_runner`."""
    monkeypatch.setattr(load, "free_memory", lambda: 1000)
    with pytest.raises(MemoryLimit, match="a KV page of 16 tokens takes"):
        capacity(path, config())


def test_the_capacity_is_what_was_measured(path: Path) -> None:
    found = capacity(path, config({"page_size": 32}, {"max_num_seqs": 3}, max_model_len=100))
    assert (found.pages, found.page_size, found.max_model_len, found.vocabulary) == ((12,), 32, 100, 320)
    assert capacity(path, config()).max_model_len == 512
    one_page = page_bytes(KVGroup(2, 2, 16), 16, "f16")
    assert capacity(path, config({"kv_memory": 3 * one_page})).max_model_len == 48, "no longer than the pages hold"


def test_a_file_that_promises_any_length(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rotary angles are made for what the pages can hold: a context of 2**31 - 1 tokens would want 100 GB of them."""
    monkeypatch.setattr(load, "free_memory", lambda: 10 * 2**20)
    found = capacity(tiny_model(tmp_path, context=2**31 - 1), config())
    assert found.max_model_len == min(found.pages) * 16 < 2**20


def test_a_length_beyond_the_models_own(path: Path) -> None:
    with pytest.raises(InvalidConfig, match="max_model_len is 513, and the model was trained for 512 tokens"):
        capacity(path, config(max_model_len=513))


def test_a_file_that_is_wrong(tmp_path: Path) -> None:
    odd = tiny_model(tmp_path, heads=3, kv_heads=2, head_dim=32, width=96)
    with pytest.raises(ModelFileError, match="3 query heads cannot share 2"):
        capacity(odd, config())


def test_the_fingerprint_is_of_what_outputs_hang_on(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Weights, KV format, activations, arithmetic; and nothing else."""
    first = capacity(path, config()).fingerprint
    assert first.startswith("pagoda-")
    same = (
        config({"threads": 3, "page_size": 4, "kv_memory": 2**20}),
        config(scheduler={"chunk": 7, "max_num_seqs": 2, "steps_in_flight": 1}),
        config(max_model_len=77),
        replace(config(), model=ModelConfig(model="another name")),
    )
    assert {capacity(path, settings).fingerprint for settings in same} == {first}
    monkeypatch.setenv("PAGODA_ISA", "scalar")
    assert capacity(path, config()).fingerprint == first
    copied = tmp_path / "copied.gguf"
    copied.write_bytes(path.read_bytes())
    assert capacity(copied, config()).fingerprint == first
    others = [
        capacity(tiny_model(tmp_path, seed=1), config()).fingerprint,
        capacity(path, config(kv_format="f32")).fingerprint,
        capacity(path, config(activations="int8")).fingerprint,
        capacity(path, config(activations="f32")).fingerprint,
    ]
    monkeypatch.setattr("pagoda.backends.cpu.ARITHMETIC", 999)
    others.append(capacity(path, config()).fingerprint)
    assert len({first, *others}) == 1 + len(others)
