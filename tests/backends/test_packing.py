"""Packed weights: every format that can be read, no byte more than the file has, and nothing that does not fit."""

from __future__ import annotations

import os
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pagoda import quant
from pagoda.backends.cpu import CpuBackend
from pagoda.catalog import ModelFile
from pagoda.errors import ModelFileError
from tiny import tiny_model

from .formats import FORMATS, QUANTISED, random_tensor

ALIGNMENT = 64


@pytest.fixture(scope="module")
def native() -> Any:
    return pytest.importorskip("pagoda.backends._native")


def test_native_kernels_read_every_format() -> None:
    assert set(import_module("pagoda.backends.cpu").WEIGHT_FORMATS) == set(quant.names()) == set(FORMATS)


@pytest.mark.parametrize("name", FORMATS)
def test_memory_is_the_file(native: Any, name: str) -> None:
    """Scales, planes of bits and all: a tile is its rows' bytes in another order, rounded up to a cache line."""
    tensor = random_tensor(np.random.default_rng(0), name, (48, 1280))
    (packed,) = native.pack(native.Pool(1), [(name, 48, 1280, tensor.raw)])
    assert 0 <= packed.bytes - tensor.raw.nbytes < 3 * ALIGNMENT


@pytest.mark.parametrize("name", QUANTISED)
def test_rows_of_broken_blocks_are_refused(native: Any, name: str) -> None:
    tensor = random_tensor(np.random.default_rng(0), name, (4, 256))
    with pytest.raises(ValueError, match="another size"):
        native.pack(native.Pool(1), [(name, 4, 240, tensor.raw)])
    with pytest.raises(ValueError, match="another size"):
        native.pack(native.Pool(1), [(name, 3, 256, tensor.raw)])


def test_a_file_cut_short_while_it_is_packed(tmp_path: Path) -> None:
    """The tensor is named, as it is when it is read by itself; what lies before the cut is no worse for it."""
    with ModelFile(tiny_model(tmp_path)) as file:
        backend = CpuBackend(threads=2)
        tensors = {tensor.name: tensor for batch in file.batches(file.tensors) for tensor in batch}
        os.truncate(file.path, file.tensors["blk.1.ffn_up.weight"].offset + 3)
        assert backend.weight(tensors["token_embd.weight"]).shape == tensors["token_embd.weight"].shape
        for some in (tensors.values(), [tensors["output_norm.weight"]]):
            with pytest.raises(ModelFileError, match=r"within tensor '.*cut short after it was opened"):
                backend.weights(list(some))
