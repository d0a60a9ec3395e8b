"""Dense models quantised at load: the same bytes as a file quantised ahead, what stays, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from families.tiny_families import CONFIGS, weights
from gguf_writer import stored
from hf_files import write_model
from pagoda import LLM, SamplingParams
from pagoda.catalog import ModelFile, open_model
from pagoda.errors import InvalidConfig, ModelFileError, UnsupportedModel
from tiny import TinyShape, tiny_file

SHAPE = TinyShape(format="f32", embedding_format="f32", width=96, heads=6, tied=False, ffn=80)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PAGODA_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    found = tmp_path / "dense.gguf"
    found.write_bytes(tiny_file(SHAPE).bytes())
    return found


@pytest.mark.parametrize("form", ["q8_0", "q4_1", "q4_0"])
def test_as_a_file_quantised_ahead(path: Path, form: str) -> None:
    with ModelFile(path) as dense, open_model(path, quantize=form) as quantized:
        for name, info in dense.tensors.items():
            floats, (made,) = dense.tensor(name).floats(), next(iter(quantized.batches([name])))
            wanted = "q8_0" if name in ("token_embd.weight", "output.weight") else form
            stays = len(info.shape) == 1 or info.shape[-1] % 32 != 0
            expected = info.format.name if stays else wanted
            assert made.format.name == quantized.tensors[name].format.name == expected
            assert made.raw.tobytes() == stored(name, floats, expected).raw
            assert quantized.tensors[name].size == made.raw.nbytes
            assert made.shape == info.shape
        assert any(info.shape[-1] % 32 for info in dense.tensors.values())


def test_rows_that_are_no_whole_blocks_become_q8_0(tmp_path: Path) -> None:
    """Blocks of q4_k are 256 numbers long."""
    path = tmp_path / "wide.gguf"
    path.write_bytes(tiny_file(replace(SHAPE, width=256, head_dim=64, heads=4, ffn=96)).bytes())
    with open_model(path, quantize="q4_k") as source:
        forms = {name: info.format.name for name, info in source.tensors.items()}
        (made,) = next(iter(source.batches(["blk.0.attn_q.weight"])))
    assert (forms["blk.0.attn_q.weight"], forms["blk.0.ffn_down.weight"]) == ("q4_k", "q8_0")
    with ModelFile(path) as dense:
        floats = dense.tensor("blk.0.attn_q.weight").floats()
    assert 0 < np.abs(made.floats() - floats).max() < np.abs(floats).max() / 10


def test_it_runs_with_its_own_fingerprint(path: Path) -> None:
    """From a file and from a directory; the file quantised ahead gives the same tokens."""
    prints, ahead = set(), path.with_name("ahead.gguf")
    ahead.write_bytes(tiny_file(replace(SHAPE, format="q4_0", embedding_format="q8_0", ffn=96)).bytes())
    dense = path.with_name("wide.gguf")
    dense.write_bytes(tiny_file(replace(SHAPE, ffn=96)).bytes())
    params, texts = SamplingParams(max_tokens=8, temperature=0, ignore_eos=True), []
    for model, form in ((ahead, None), (dense, "q4_0"), (dense, "q8_0"), (dense, None)):
        with LLM(str(model), threads=1, quantize=form) as llm:
            texts.append(llm.generate(["the same"], params)[0].choices[0].token_ids)
            prints.add(llm.system_fingerprint)
    assert texts[0] == texts[1]
    assert len(prints) == 4
    directory = write_model(path.parent / "hf", CONFIGS["qwen3"], weights(CONFIGS["qwen3"]), "BF16")
    with LLM(str(directory), threads=1, quantize="q8_0") as llm:
        assert llm.generate(["hello"], params)[0].choices[0].token_ids


def test_what_is_refused(path: Path) -> None:
    with pytest.raises(InvalidConfig, match="quantize must be one of"):
        LLM(str(path), quantize="q6_k")
    with pytest.raises(UnsupportedModel, match="can be read but not written"):
        open_model(path, quantize="q3_k")
    file = tiny_file(SHAPE)
    bad = stored("blk.0.attn_q.weight", np.full((96, 96), np.nan, np.float32), "f32")
    path.write_bytes(replace(file, tensors=[bad if t.name == bad.name else t for t in file.tensors]).bytes())
    with open_model(path, quantize="q8_0") as source, pytest.raises(ModelFileError, match=r"attn_q.weight': cannot"):
        next(iter(source.batches([bad.name])))
