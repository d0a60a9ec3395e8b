"""Sizes worked out from a header are those that memory has: of weights, pages, and the whole process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pagoda import quant
from pagoda.backends import _native
from pagoda.backends.cpu import WEIGHT_FORMATS, CpuBackend
from pagoda.backends.footprint import packed_bytes
from pagoda.backends.ops import KVGroup, StoredTensor
from pagoda.bench.plan import plan_model
from pagoda.catalog import ModelFile
from pagoda.config import KV_FORMATS
from pagoda.errors import InvalidConfig, MemoryLimit, UnsupportedModel
from pagoda.llm import engine_config, open_engine
from pagoda.runner.sizing import KV_AUTO, KV_SHARE, Sizing, page_bytes, size
from tiny import tiny_model

FREE = 10**10


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("sizing"), head_dim=24, context=500, vocabulary=333, tied=False)


def sized(path: Path, free: int = FREE, **options: Any) -> Sizing:
    with ModelFile(path) as file:
        return size(file, engine_config(str(path), **options), free)


@pytest.mark.parametrize("form", WEIGHT_FORMATS)
@pytest.mark.parametrize(("n", "blocks"), [(1, 1), (16, 2), (17, 3)])
def test_packed_bytes(form: str, n: int, blocks: int) -> None:
    stored = quant.by_name(form)
    k = blocks * max(32, stored.block)
    raw = np.zeros(n * k // stored.block * stored.block_bytes, np.uint8)
    packed = CpuBackend(threads=1).weight(StoredTensor("w", (n, k), stored, raw)).packed
    assert packed_bytes("w", form, (n, k)) == packed.bytes


def test_a_format_without_kernels() -> None:
    with pytest.raises(UnsupportedModel, match="tensor 'w' is in nonsense"):
        packed_bytes("w", "nonsense", (16, 32))


@pytest.mark.parametrize("kv_format", KV_FORMATS)
@pytest.mark.parametrize("group", [KVGroup(1, 1, 1), KVGroup(3, 2, 24), KVGroup(2, 3, 64), KVGroup(2, 1, 33)])
@pytest.mark.parametrize("page_size", [1, 4, 16])
def test_page_bytes(kv_format: str, group: KVGroup, page_size: int) -> None:
    store: Any = CpuBackend(threads=1).kv_store([group], [5], page_size, kv_format)
    assert store.bytes == 5 * page_bytes(group, page_size, kv_format)


def test_weights_by_format(tiny: Path) -> None:
    s = sized(tiny)
    with ModelFile(tiny) as file:
        assert sum(w.tensors for w in s.weights) == len(file.tensors)
        assert sum(w.numbers for w in s.weights) == sum(int(np.prod(t.shape)) for t in file.tensors.values())
        embedding = file.tensors["token_embd.weight"]
        one_row = packed_bytes("e", embedding.format.name, embedding.shape) // embedding.shape[0]
        matrices = [t for t in file.tensors.values() if len(t.shape) == 2]
        read = sum(packed_bytes(t.name, t.format.name, t.shape) for t in matrices if t is not embedding)
    assert s.token_weights == read + one_row
    assert s.token_read(100) == s.token_weights + 100 * s.token_bytes


def test_a_tied_projection_is_read_whole(tmp_path: Path) -> None:
    s = sized(tiny_model(tmp_path, tied=True))
    vectors = next(w for w in s.weights if w.format == "f32")
    assert s.token_weights > s.weight_bytes - vectors.bytes


def test_pages(tiny: Path) -> None:
    each = sum(sized(tiny).page_bytes)
    assert sized(tiny).pages == (min(KV_AUTO // each, 64 * 32),)  # 500 tokens are 32 pages
    assert sized(tiny, max_num_seqs=2).pages == (64,)
    assert sized(tiny, max_num_seqs=2, max_model_len=17).pages == (4,)
    assert sized(tiny, kv_memory=5 * each + 1).pages == (5,)
    assert sized(tiny, kv_memory=5 * each + 1).longest == 80
    s = sized(tiny, free=10**6)
    assert s.pages == (int((10**6 - s.weight_bytes) * KV_SHARE) // each,)
    assert s.sequences(80) == s.pages[0] // 5


def test_too_little_memory(tiny: Path) -> None:
    weights = sized(tiny).weight_bytes
    with pytest.raises(MemoryLimit, match="a KV page of 16 tokens"):
        sized(tiny, free=weights + 100)
    with pytest.raises(MemoryLimit, match="kv_memory asks for 9000000000 bytes"):
        sized(tiny, kv_memory=9 * 10**9)
    with pytest.raises(InvalidConfig, match="max_model_len is 501"):
        sized(tiny, max_model_len=501)


def test_the_engine_starts_with_the_planned_numbers(tiny: Path) -> None:
    config = engine_config(str(tiny), max_num_seqs=3, threads=1)
    plan = plan_model(config)
    opened = open_engine(config)
    capacity = opened.engine.capacity
    opened.close()
    assert capacity.pages == plan.sizing.pages
    assert capacity.max_model_len == plan.sizing.longest == 500
    assert opened.sizing is not None
    assert opened.sizing.started == plan.sizing.started


def test_decoding_is_bandwidth_over_bytes(tiny: Path) -> None:
    plan = plan_model(engine_config(str(tiny), threads=1), memory=FREE, measure=True)
    assert plan.bandwidth is not None
    assert plan.bandwidth > 1e8
    assert plan.decode(7) == plan.bandwidth / plan.sizing.token_read(7)
    text = "\n".join(plan.lines())
    assert f"= {plan.decode(0):.0f} tokens/s at most" in text
    assert plan_model(engine_config(str(tiny)), memory=FREE).decode(0) is None


def pagoda(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "pagoda", *arguments], capture_output=True, text=True, check=False)


def test_the_command(tiny: Path) -> None:
    done = pagoda("plan", str(tiny), "--json", "--memory", "1GiB", "--max-num-seqs", "2", "--kv-format", "f32")
    report = json.loads(done.stdout)
    assert (report["free_bytes"], report["kv_format"], report["pages"]) == (2**30, "f32", 64)
    assert report["page_bytes"] == 16 * report["kv_token_bytes"] == 16 * 2 * report["kv_token_layer_bytes"][0]
    assert report["started_bytes"] == sum(
        report[part] for part in ("weight_bytes", "kv_bytes", "rope_bytes", "process_bytes")
    )
    text = pagoda("plan", str(tiny)).stdout
    for words in ("weights", "packed", "bytes a token and layer", "pages", "sequences", "memory", "--measure"):
        assert words in text
    refused = pagoda("plan", str(tiny), "--memory", "100K")
    assert refused.returncode == 1
    assert refused.stderr.startswith("pagoda: a KV page of 16 tokens")


@pytest.mark.model
def test_memory_of_a_server(smollm2_path: Path) -> None:
    """A started server has the memory that was planned, within 5 %, and tells its sizes in three lines."""
    options = [str(smollm2_path), "--kv-memory", "512M"]  # as large beside the process itself as servers are
    planned = json.loads(pagoda("plan", "--json", *options).stdout)["started_bytes"]
    with subprocess.Popen(
        [sys.executable, "-m", "pagoda", "serve", "--port", "0", *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as server:
        assert server.stdout is not None
        assert server.stdout.readline().startswith("ready ")
        pages = int(Path(f"/proc/{server.pid}/statm").read_text().split()[1])
        server.terminate()
        _, errors = server.communicate(timeout=30)
    assert [line.split()[0] for line in errors.splitlines()] == ["weights", "kv", "sequences:"]
    assert pages * os.sysconf("SC_PAGE_SIZE") == pytest.approx(planned, rel=0.05)


def test_the_native_module_refuses_unknown_formats() -> None:
    with pytest.raises(ValueError, match="q9_9"):
        _native.packed_bytes("q9_9", 16, 32)
