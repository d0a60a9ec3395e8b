"""Gemma 3 270M, the second built-in model, against transformers on the same file (make_gemma3.py)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from golden_logits import log_softmax
from measure_smollm2 import Net

from pagoda import catalog
from pagoda.catalog import ModelFile
from pagoda.errors import DownloadError
from pagoda.text.tokenizer import Tokenizer

pytestmark = pytest.mark.model
GOLDEN = Path(__file__).with_name("gemma3_logits.npz")


@pytest.fixture(scope="module")
def path() -> Path:
    try:
        return catalog.resolve("gemma3-270m")
    except DownloadError as error:
        pytest.skip(f"the model is not to be had: {error}")


@pytest.fixture(scope="module")
def golden() -> dict[str, np.ndarray]:
    with np.load(GOLDEN) as arrays:
        return dict(arrays)


def difference(golden: dict[str, np.ndarray], net: Net) -> tuple[float, float]:
    """Largest difference of the stored log-probabilities, and how often the likeliest token is the same."""
    worst, same = 0.0, []
    for start, end in zip(golden["offsets"][:-1], golden["offsets"][1:], strict=True):
        ours = log_softmax(net.logits(golden["ids"][start:end].tolist(), (17, 30)))
        same.append(ours.argmax(1) == golden["top_ids"][start:end, 0])
        for name in ("top", "spot"):
            got = np.take_along_axis(ours, golden[name + "_ids"][start:end], 1)
            worst = max(worst, float(np.abs(got - golden[name + "_logp"][start:end]).max()))
    return worst, float(np.concatenate(same).mean())


def test_the_golden_file_is_of_the_very_model(golden: dict[str, np.ndarray]) -> None:
    assert str(golden["model_sha256"]) == catalog.BUILTINS["gemma3-270m"].sha256
    assert len(golden["ids"]) == golden["offsets"][-1] > 80
    assert GOLDEN.stat().st_size < 200_000


def test_f32_is_the_reference(path: Path, golden: dict[str, np.ndarray]) -> None:
    worst, same = difference(golden, Net(path, "f32", "f32"))
    assert worst < 2e-3
    assert same == 1.0


def test_the_default_is_close(path: Path, golden: dict[str, np.ndarray]) -> None:
    worst, same = difference(golden, Net(path, "int16", "f16"))
    assert worst < 0.1
    assert same >= 0.98


def test_the_tokenizer_and_the_template(path: Path, golden: dict[str, np.ndarray]) -> None:
    """Ids as transformers makes them of the file's vocabulary; the template is a built-in one: the file has none."""
    with ModelFile(path) as source:
        assert "tokenizer.chat_template" not in source.metadata
        tokenizer = Tokenizer.from_metadata(source.metadata)
    for text, start, end in zip(golden["texts"], golden["offsets"][:-1], golden["offsets"][1:], strict=True):
        assert list(tokenizer.encode_prompt(str(text))) == golden["ids"][start:end].tolist()
    turn = tokenizer.encode_chat([{"role": "user", "content": "Hi"}])
    assert list(turn)[:3] == [2, 105, 2364]
    assert 106 in turn
    assert 106 in tokenizer.stop_ids
