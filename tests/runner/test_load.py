"""From a file to a runner: how many pages, what is refused, and what the fingerprint is of."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from families.tiny_families import CONFIGS, as_gguf
from pagoda.backends.ops import KVGroup
from pagoda.catalog import ModelFile
from pagoda.config import EngineConfig, MachineConfig, ModelConfig, SchedulerConfig
from pagoda.errors import InvalidConfig, MemoryLimit, ModelFileError
from pagoda.plan import Capacity
from pagoda.runner.load import load_runner
from pagoda.runner.sizing import page_bytes, size
from tiny import tiny_model


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


FREE = 8 * 2**30
"""Bytes of an imagined machine."""


def capacity(path: Path, settings: EngineConfig, free: int = FREE) -> Capacity:
    with ModelFile(path) as source:
        return load_runner(source, settings, size(source, settings, free)).capacity


def test_a_machine_too_small_for_one_page(path: Path) -> None:
    """What happened, the values, the way out."""
    with pytest.raises(
        MemoryLimit,
        match=r"a KV page of 16 tokens takes \d+ bytes, and 0 are to be had \(1000 bytes free.*smaller page",
    ):
        capacity(path, config(), 1000)


def test_the_capacity_is_what_was_measured(path: Path) -> None:
    found = capacity(path, config({"page_size": 32}, {"max_num_seqs": 3}, max_model_len=100))
    assert (found.pages, found.page_size, found.max_model_len, found.vocabulary) == ((12,), 32, 100, 320)
    assert capacity(path, config()).max_model_len == 512
    one_page = page_bytes(KVGroup(2, 2, 16), 16, "f16")
    assert capacity(path, config({"kv_memory": 3 * one_page})).max_model_len == 48, "no longer than the pages hold"


def test_a_file_that_promises_any_length(tmp_path: Path) -> None:
    """Rotary angles are made for what the pages can hold: a context of 2**31 - 1 tokens would want 100 GB of them."""
    found = capacity(tiny_model(tmp_path, context=2**31 - 1), config(), 10 * 2**20)
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


def test_short_and_long_rotary_factors_have_fingerprints_of_their_own(tmp_path: Path) -> None:
    """Phi-3's factors hang on how long sequences may be: nothing else of the length changes an output."""
    path = tmp_path / "phi3.gguf"
    path.write_bytes(as_gguf(CONFIGS["phi3-long"]).bytes())
    found = [capacity(path, config(max_model_len=n)).fingerprint for n in (16, 32, 33, 64)]
    assert found[0] == found[1] != found[2] == found[3]
