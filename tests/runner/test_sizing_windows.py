"""Pages of two pools from one budget: a window's worth for each sequence, the rest for the layers that see all."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from families.tiny_families import CONFIGS, as_gguf
from pagoda.bench.plan import Plan
from pagoda.catalog import ModelFile
from pagoda.config import MAX_CHUNK
from pagoda.llm import engine_config, open_engine
from pagoda.plan import most_pages
from pagoda.runner.sizing import TYPICAL, Sizing, size

WINDOW = 16
FREE = 10**10


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("windows")
    for name in ("gemma3", "mistral"):
        file = as_gguf(CONFIGS[name] | {"max_position_embeddings": 8192}, lambda _: "q8_0")
        (folder / f"{name}.gguf").write_bytes(file.bytes())
    return {name: folder / f"{name}.gguf" for name in ("gemma3", "mistral")}


def sized(path: Path, free: int = FREE, **options: Any) -> Sizing:
    with ModelFile(path) as file:
        return size(file, engine_config(str(path), **options), free)


def test_groups(paths: dict[str, Path]) -> None:
    """Gemma's third layer sees all; of Mistral, whose layers all have a window, the first group is empty."""
    gemma, mistral = sized(paths["gemma3"]), sized(paths["mistral"])
    assert [(g.layers, g.window) for g in gemma.groups] == [(1, None), (3, WINDOW)]
    assert [(g.layers, g.window) for g in mistral.groups] == [(0, None), (3, WINDOW)]
    assert mistral.page_bytes[0] == 0
    assert mistral.token_bytes == mistral.page_bytes[1] // 16


@pytest.mark.parametrize("name", ["gemma3", "mistral"])
@pytest.mark.parametrize("kv_memory", [2**15, 2**18, 3 * 2**20, 2**24, 2**27])
@pytest.mark.parametrize("longest", [100, 1000, 8192])
def test_never_less_than_without(paths: dict[str, Path], name: str, kv_memory: int, longest: int) -> None:
    """However small the budget: it is kept, no sequence must be shorter than if all layers kept everything, and half as
    many typical ones fit, or more.
    """
    s = sized(paths[name], kv_memory=kv_memory, max_model_len=longest, max_num_seqs=8)
    same = kv_memory // sum(s.page_bytes)
    whole = -(-longest // 16)
    assert s.kv_bytes <= kv_memory
    assert s.pages[1] <= s.pages[0] <= 8 * whole
    assert s.pages[0] >= min(same, 8 * whole)
    assert s.longest >= min(longest, same * 16)
    assert s.pages[1] >= min(same, most_pages(WINDOW, s.longest, MAX_CHUNK, 16)), "one sequence always fits"
    typical = min(longest, TYPICAL)
    assert s.sequences(typical) >= min(same // -(-typical // 16), 8) // 2


def test_windows_keep_half_if_the_longest_cannot_fit(paths: dict[str, Path]) -> None:
    """Two long contexts cannot be had, nor one: so as many sequences as half of the memory has windows for."""
    s = sized(paths["gemma3"], kv_memory=2**20, max_num_seqs=64, chunk=16)
    assert s.longest < 8192
    taken = s.pages[1] * s.page_bytes[1]
    assert 2**19 - 2 * s.page_bytes[1] < taken <= 2**19 or s.pages[0] < (s.windows_for + 1) * 64
    assert s.pages[0] == (2**20 - taken) // s.page_bytes[0]
    assert s.longest == s.pages[0] * 16 > 2 * 2**20 // sum(s.page_bytes) * 16


def test_the_split_is_by_sequences(paths: dict[str, Path]) -> None:
    s = sized(paths["gemma3"], kv_memory=2**24, max_num_seqs=8, chunk=64)
    assert s.windows_for == 16, "twice as many as may run"
    one, more = most_pages(WINDOW, 8192, 64, 16), most_pages(WINDOW, 1024, 1, 16)
    assert (one, more) == (6, 2)
    assert s.pages[1] == 6 + 15 * 2
    assert s.pages[0] == min((2**24 - s.pages[1] * s.page_bytes[1]) // s.page_bytes[0], 8 * 512)
    budget = 2**21 + 2**18
    less = sized(paths["gemma3"], kv_memory=budget, max_num_seqs=8, chunk=64)
    n = less.windows_for
    assert 1 < n < 16
    left = [(budget - (6 + k * 2) * less.page_bytes[1]) // less.page_bytes[0] for k in (n - 1, n)]
    assert left[0] >= max(512, n * 64), "the longest sequence fits, and as many typical ones as there are windows for"
    assert left[1] < max(512, (n + 1) * 64), "and not one more"


def test_a_token_reads_windows_only(paths: dict[str, Path]) -> None:
    s = sized(paths["gemma3"])
    assert s.token_read(10) - s.token_weights == 10 * sum(s.page_bytes) // 16
    assert s.token_read(1000) - s.token_weights == (1000 * s.page_bytes[0] + WINDOW * s.page_bytes[1]) // 16


@pytest.mark.parametrize("name", ["gemma3", "mistral"])
def test_plan_says_each_with_its_arithmetic(paths: dict[str, Path], name: str) -> None:
    s = sized(paths[name], kv_memory=2**24, max_num_seqs=8, chunk=64)
    plan = Plan(s, 0, None)
    text = "\n".join(plan.lines())
    assert f"{s.pages[1]} x 16 tokens x {s.page_bytes[1] / 16:g}" in text
    assert "6 + 15 x 2, for 16 sequences" in text
    assert "a sequence of 8192 tokens holds 2 of these pages" in text
    assert f"with a window of {WINDOW}" in text
    groups = json.loads(json.dumps(plan.as_dict()))["kv_groups"]
    assert [(g["pages"], g["window"]) for g in groups] == [(s.pages[0], None), (s.pages[1], WINDOW)]


@pytest.mark.parametrize("name", ["gemma3", "mistral"])
def test_the_engine_has_them(paths: dict[str, Path], name: str) -> None:
    options: dict[str, Any] = {"kv_memory": 2**21, "threads": 1, "max_num_seqs": 4}
    opened = open_engine(engine_config(str(paths[name]), **options))
    capacity = opened.engine.capacity
    opened.close()
    s = sized(paths[name], **options)
    assert (capacity.pages, capacity.windows, capacity.max_model_len) == (s.pages, (None, WINDOW), s.longest)
