"""The first layers of a model as a file: the same tensors, but for those left out; all of them are the model again."""

import sys
from pathlib import Path

import gguf
import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import first_layers
import make_model

from pagoda.catalog.gguf import read_header


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "m.gguf"
    make_model.make(path, make_model.SHAPES["tiny"], "q4_k_m", 3, "tiny")
    return path


def cut(model: Path, layers: int) -> bytes:
    with model.open("rb") as file:
        header = read_header(file.fileno(), model.stat().st_size, "m")
    return first_layers.cut(model.read_bytes(), header, layers)


def test_all_layers_are_the_model(model: Path) -> None:
    whole = cut(model, make_model.SHAPES["tiny"].layers)
    assert whole == model.read_bytes()[: len(whole)]
    assert len(whole) >= model.stat().st_size


def test_the_first_layers_are_those_of_the_model(model: Path, tmp_path: Path) -> None:
    out = tmp_path / "first.gguf"
    out.write_bytes(cut(model, 1))
    whole, part = gguf.GGUFReader(model), gguf.GGUFReader(out)
    of_whole = {tensor.name: tensor for tensor in whole.tensors}
    assert {t.name for t in part.tensors} == {name for name in of_whole if not name.startswith("blk.1.")}
    for tensor in part.tensors:
        assert tensor.tensor_type == of_whole[tensor.name].tensor_type
        np.testing.assert_array_equal(tensor.data, of_whole[tensor.name].data)
    assert part.fields["llama.block_count"].contents() == 1
    assert part.fields["llama.context_length"].contents() == whole.fields["llama.context_length"].contents()


@pytest.mark.parametrize("layers", [0, 3])
def test_layers_that_there_are_not_are_refused(model: Path, layers: int) -> None:
    with pytest.raises(ValueError, match="the model has 2 layers"):
        cut(model, layers)
