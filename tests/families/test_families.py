"""Every family against transformers: tiny random models, in f32, log-probabilities of a whole sequence."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from gguf_writer import File
from pagoda.backends import open_backend
from pagoda.backends.cpu import rope_table
from pagoda.backends.ops import Floats, Step
from pagoda.catalog import ModelFile
from pagoda.models import FAMILIES, Source, build, read_config
from pagoda.runner.runner import whole_model

from .tiny_families import CONFIGS, LENGTH, as_gguf, ids

GOLDEN = Path(__file__).with_name("golden")
TOLERANCE = 2e-3
"""Of any log-probability; rounding alone gives a hundredth of it."""


def golden(name: str) -> Floats:
    with np.load(GOLDEN / f"{name}.npz") as arrays:
        logits: Floats = arrays["logits"]
    return logits


def log_softmax(x: Floats) -> Floats:
    wide = x - x.max(axis=1, keepdims=True)
    return wide - np.log(np.exp(wide).sum(axis=1, keepdims=True))


def written(directory: Path, name: str, file: File) -> Path:
    path = directory / f"{name}.gguf"
    path.write_bytes(file.bytes())
    return path


def logits_of(path: Path, tokens: Sequence[int], backend: str = "cpu", chunk: int = LENGTH) -> Floats:
    """Logits of every position, `chunk` tokens a step, in f32 throughout."""
    with ModelFile(path) as source:
        return logits_of_source(source, tokens, backend, chunk)


def logits_of_source(source: Source, tokens: Sequence[int], backend: str = "cpu", chunk: int = LENGTH) -> Floats:
    opened = open_backend(backend, activations="f32")
    model = build(source, read_config(source), opened.weights, rope_table, len(tokens))
    program = opened.program(lambda ops: whole_model(model, ops))
    pages = np.arange(-(-len(tokens) // 16), dtype=np.int32)[None]
    store = opened.kv_store(model.groups, [pages.size] * len(model.groups), 16, "f32")
    found = []
    for start in range(0, len(tokens), chunk):
        rows = np.arange(start, min(start + chunk, len(tokens)), dtype=np.int32)
        step = Step(np.array(tokens, np.int32)[rows], rows, rows * 0, (pages,) * len(model.groups), rows - start)
        found.append(program.run(store, step)["logits"])
    return np.concatenate(found)


def test_every_family_has_a_golden_file() -> None:
    """And none is larger than it may be."""
    files = {path.stem: path for path in GOLDEN.glob("*.npz")}
    assert set(files) == set(CONFIGS)
    assert all(path.stat().st_size < 200_000 for path in files.values())
    assert {as_gguf(config).metadata["general.architecture"] for config in CONFIGS.values()} == set(FAMILIES)


@pytest.mark.parametrize("name", CONFIGS)
def test_like_transformers(tmp_path: Path, name: str) -> None:
    path = written(tmp_path, name, as_gguf(CONFIGS[name]))
    want = log_softmax(golden(name))
    for backend, chunk in (("reference", LENGTH), ("cpu", LENGTH), ("cpu", 7)):
        difference = np.abs(log_softmax(logits_of(path, ids(), backend, chunk)) - want)
        assert difference.max() < TOLERANCE, f"{backend}, {chunk} tokens a step: {difference.max(axis=1)}"


def test_what_makes_a_family_matters() -> None:
    """Each variant's logits are far from its plain relative's: passing over what it has would be seen."""
    for one, other in (
        ("llama2", "llama-linear"), ("phi3-long", "phi3-short"), ("qwen2", "qwen2-yarn"), ("llama2", "mistral"),
        ("llama2", "llama-dynamic"),
    ):  # fmt: skip
        assert np.abs(log_softmax(golden(one)) - log_softmax(golden(other))).max() > 100 * TOLERANCE
