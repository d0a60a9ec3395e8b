"""What a quantised file holds: formats, metadata as it was, rows and experts where other readers look for them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from gguf import GGUFReader
from gguf.quants import dequantize

from families.test_families import golden, log_softmax, logits_of
from families.tiny_families import CONFIGS, as_gguf, ids, weights
from gguf_writer import F64, U8, As, stored
from hf_files import write_model
from pagoda import LLM, SamplingParams
from pagoda.catalog import ModelFile
from pagoda.catalog.gguf_head import encode
from pagoda.quantize import Options, quantize
from pagoda.quantize.layout import FORMATS
from quantised_files import KINDS
from tiny import TinyShape, tiny_file

DENSE = TinyShape(format="f32", embedding_format="f32", width=256, head_dim=64, ffn=288, tied=False)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PAGODA_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "dense.gguf"
    path.write_bytes(tiny_file(DENSE).bytes())
    return path


@pytest.mark.parametrize("form", FORMATS)
def test_each_format_as_the_gguf_package_reads_it(model: Path, form: str) -> None:
    """Every tensor has the bytes that `quant` makes of it, and the package reads the same numbers of them."""
    out = model.with_name("out.gguf")
    report = quantize(model, out, Options(form))
    theirs = {tensor.name: tensor for tensor in GGUFReader(out).tensors}
    with ModelFile(model) as dense, ModelFile(out) as made:
        assert list(made.tensors) == list(theirs)
        assert {n: t.shape for n, t in made.tensors.items()} == {n: t.shape for n, t in dense.tensors.items()}
        for name, info in made.tensors.items():
            outer = form if form in ("f32", "f16", "bf16") else "q8_0"
            wanted = outer if name in ("token_embd.weight", "output.weight") else form
            if form.endswith("_k") and info.shape[-1] % 256:
                wanted = "q8_0"
            assert info.format.name == (wanted if len(info.shape) > 1 else "f32")
            assert made.tensor(name).raw.tobytes() == stored(name, dense.tensor(name).floats(), info.format.name).raw
            read = dequantize(theirs[name].data, theirs[name].tensor_type)
            np.testing.assert_array_equal(read.reshape(info.shape), made.tensor(name).floats())
    sizes = sum(t.bytes for t in report.tensors)
    assert out.stat().st_size - sizes < 64 * 1024
    assert report.bits_per_weight == 8 * sizes / sum(t.numbers for t in report.tensors)
    assert {t.name for t in report.tensors if t.error > 0} == {
        n for n, t in theirs.items() if t.tensor_type.name.lower() != "f32"
    }


def test_errors_are_those_of_the_numbers(model: Path) -> None:
    out = model.with_name("out.gguf")
    report = quantize(model, out, Options("q4_0"))
    with ModelFile(model) as dense, ModelFile(out) as made:
        for tensor in report.tensors:
            was, became = dense.tensor(tensor.name).floats(), made.tensor(tensor.name).floats()
            relative = np.linalg.norm(became - was) / np.linalg.norm(was)
            assert tensor.error == pytest.approx(relative, rel=1e-4)


def test_metadata_is_carried_over_to_the_bit(model: Path) -> None:
    """Types that Python does not tell apart as well; only what is said of formats and parts is new."""
    file = tiny_file(DENSE)
    odd = {"odd.byte": As(U8, 7), "odd.double": As(F64, 1 / 3), "split.count": 1, "general.alignment": 64}
    metadata = {**file.metadata, **odd, "general.file_type": 0}
    model.write_bytes(replace(file, metadata=metadata, alignment=64).bytes())
    out = model.with_name("out.gguf")
    quantize(model, out, Options("q5_1"))
    with ModelFile(model) as dense, ModelFile(out) as made:
        assert set(made.metadata) - {"general.quantization_version"} == set(dense.metadata) - {"split.count"}
        for key in set(dense.metadata) - {"split.count", "general.file_type"}:
            assert made.stored_metadata(key) == dense.stored_metadata(key)
        assert made.metadata["general.file_type"] == 9
        assert all(t.offset % 64 == 0 for t in made.tensors.values())


def test_it_runs_as_what_is_quantised_at_load(model: Path) -> None:
    out = model.with_name("out.gguf")
    quantize(model, out, Options("q4_k"))
    params, texts = SamplingParams(max_tokens=8, temperature=0, ignore_eos=True), []
    for path, form in ((out, None), (model, "q4_k")):
        with LLM(str(path), threads=1, quantize=form) as llm:
            texts.append(llm.generate(["the same"], params)[0].choices[0].token_ids)
    assert texts[0] == texts[1]


@pytest.mark.parametrize("name", [name for name in CONFIGS if name != "gpt-oss"])
def test_directories_become_what_converters_make_of_them(tmp_path: Path, name: str) -> None:
    """Rotary pairs side by side where the family has them so, experts in one tensor, Gemma's norms with 1 added."""
    directory = write_model(tmp_path / "hf", CONFIGS[name], weights(CONFIGS[name]))
    out = tmp_path / "out.gguf"
    quantize(directory, out, Options("f32"))
    converted = tmp_path / "converted.gguf"
    converted.write_bytes(as_gguf(CONFIGS[name]).bytes())
    with ModelFile(out) as made, ModelFile(converted) as wanted:
        assert set(made.tensors) == set(wanted.tensors)
        for tensor in wanted.tensors:
            np.testing.assert_array_equal(made.tensor(tensor).floats(), wanted.tensor(tensor).floats())
    assert np.abs(log_softmax(logits_of(out, ids())) - log_softmax(golden(name))).max() < 2e-3


def test_a_directory_keeps_its_tokens_and_template(tmp_path: Path) -> None:
    directory = write_model(tmp_path / "hf", CONFIGS["llama3"], weights(CONFIGS["llama3"]), "BF16")
    config = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps(config | {"rope_theta": 500000}))  # a whole number
    out = tmp_path / "out.gguf"
    quantize(directory, out, Options("q8_0"))
    field = GGUFReader(out).get_field("llama.rope.freq_base")
    assert field is not None
    assert field.types[0].name == "FLOAT32"
    (directory / "generation_config.json").write_text(json.dumps({"temperature": 1, "top_k": 20}))
    quantize(directory, out, Options("q8_0"), force=True)
    with ModelFile(out) as made:
        assert made.stored_metadata("general.sampling.temp") == encode(1.0)
        assert made.metadata["general.sampling.top_k"] == 20
    texts = []
    for path in (directory, out):
        with LLM(str(path), threads=1) as llm:
            texts.append((llm.tokenizer.encode("hello, 12 hello"), llm.tokenizer.encode_chat(MESSAGES)))
    assert texts[0] == texts[1]


MESSAGES = [{"role": "user", "content": "hello"}]


def test_rows_that_are_no_whole_blocks_of_anything_stay(tmp_path: Path) -> None:
    shape = replace(DENSE, width=96, heads=6, head_dim=16, ffn=80, format="f16")
    model, out, said = tmp_path / "odd.gguf", tmp_path / "out.gguf", []
    model.write_bytes(tiny_file(shape).bytes())
    report = quantize(model, out, Options("q4_0"), tell=said.append)
    became = {t.name: t.became for t in report.tensors}
    assert (became["blk.0.ffn_down.weight"], became["blk.0.ffn_up.weight"]) == ("f16", "q4_0")
    assert said == report.notes
    assert said == [
        "f16 instead of q4_0, whose blocks do not divide the rows: blk.0.ffn_down.weight, blk.1.ffn_down.weight"
    ]


@pytest.mark.parametrize("kind", ["gptq-act-order", "awq-128", "int8", "fp8-block"])
def test_quantised_directories_become_files(tmp_path: Path, kind: str) -> None:
    """Of formats that no GGUF file has, and of columns in an order that none can have, the numbers remain."""
    made, out, dense = KINDS[kind].checkpoint(), tmp_path / "out.gguf", tmp_path / "dense.gguf"
    report = quantize(made.write(tmp_path / "quantised"), out, Options("f32"))
    quantize(made.write_dense(tmp_path / "dense"), dense, Options("f32"))
    assert "is quantised already" in report.notes[0]
    with ModelFile(out) as one, ModelFile(dense) as other:
        assert set(one.tensors) == set(other.tensors)
        for name in one.tensors:
            np.testing.assert_array_equal(one.tensor(name).floats(), other.tensor(name).floats(), err_msg=name)
