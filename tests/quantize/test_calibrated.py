"""AWQ and GPTQ: their arithmetic against the definitions, what they are worth, and every family."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGUFReader

from families.test_families import logits_of
from families.tiny_families import CONFIGS, as_gguf, ids, weights
from hf_files import write_model
from pagoda import quant
from pagoda.backends.ops import Floats
from pagoda.catalog import ModelFile
from pagoda.catalog.gguf import TensorInfo
from pagoda.models import read_config
from pagoda.quantize import Options, Report, awq, calibration, gptq, quantize
from pagoda.quantize.scaling import Scaled, groups
from tiny import TinyShape, tiny_file

GRIDS = tuple(n for n in quant.names() if isinstance(quant.by_name(n), quant.GridQuantizer))


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PAGODA_CACHE", str(tmp_path / "cache"))


def grid_format(name: str) -> quant.GridQuantizer:
    stored = quant.by_name(name)
    assert isinstance(stored, quant.GridQuantizer)
    return stored


def nearest(name: str, floats: Floats) -> Floats:
    stored = quant.quantizer(name)
    return stored.dequantize(stored.quantize(floats.reshape(-1, stored.block))).reshape(floats.shape)


def inputs(rows: int, width: int, seed: int = 0) -> Floats:
    """Activations as models have them: correlated, a few channels far larger than the others."""
    rng = np.random.default_rng(seed)
    mixed = rng.standard_normal((rows, width // 4)) @ rng.standard_normal((width // 4, width))
    sizes = np.exp(rng.standard_normal(width))
    sizes[:: width // 4] *= 20
    return ((mixed + 0.3 * rng.standard_normal((rows, width))) * sizes).astype(np.float32)


def output_error(x: Floats, was: Floats, became: Floats) -> float:
    return float(np.linalg.norm(x @ (became - was).T) / np.linalg.norm(x @ was.T))


# --- GPTQ --------------------------------------------------------------------------------------------------------


def test_the_factor_is_that_of_the_damped_inverse() -> None:
    x = inputs(300, 160).astype(np.float64)
    hessian = x.T @ x
    hessian[7], hessian[:, 7] = 0, 0  # an input that is always 0
    upper = gptq.factor(hessian).astype(np.float64)
    mean = np.trace(hessian) / 160
    damped = hessian + gptq.DAMPING * mean * np.eye(160)
    damped[7, 7] += mean
    assert not np.tril(upper, -1).any()
    np.testing.assert_allclose(upper.T @ upper @ damped, np.eye(160), atol=1e-3)


@pytest.mark.parametrize("name", GRIDS)
def test_without_correlation_there_is_nothing_to_feed_back(name: str) -> None:
    floats = np.random.default_rng(1).standard_normal((24, 512)).astype(np.float32)
    stored = grid_format(name)
    raw = gptq.quantize_columns(floats, gptq.factor(np.eye(512)), stored)
    grid = stored.grid(floats.reshape(-1, stored.block), np.ones_like(floats).reshape(-1, stored.block))
    wanted = grid.numbers(grid.nearest(floats.reshape(-1, stored.block))).reshape(floats.shape)
    made = stored.dequantize(raw.reshape(-1, stored.block_bytes)).reshape(floats.shape)
    np.testing.assert_allclose(made, wanted, atol=1e-6)


@pytest.mark.parametrize("name", [n for n in GRIDS if n != "q8_0"])
def test_feedback_makes_outputs_differ_less(name: str) -> None:
    """On inputs that it has not seen."""
    floats = np.random.default_rng(2).standard_normal((64, 512)).astype(np.float32)
    both = inputs(3000, 512)
    seen, unseen = both[:2500], both[2500:]
    stored = grid_format(name)
    raw = gptq.quantize_columns(floats, gptq.factor((seen.T @ seen).astype(np.float64)), stored)
    made = stored.dequantize(raw.reshape(-1, stored.block_bytes)).reshape(floats.shape)
    assert output_error(unseen, floats, made) < 0.6 * output_error(unseen, floats, nearest(name, floats))


# --- AWQ ---------------------------------------------------------------------------------------------------------


def test_scaling_helps_where_some_channels_are_large() -> None:
    floats = np.random.default_rng(3).standard_normal((96, 256)).astype(np.float32)
    x = inputs(400, 256)
    scales = awq.search(np.abs(x).mean(0), x[:200], [floats], [lambda w: nearest("q4_0", w)], 1, 256)
    assert scales is not None
    made = nearest("q4_0", floats * scales) / scales
    assert output_error(x[200:], floats, made) < 0.8 * output_error(x[200:], floats, nearest("q4_0", floats))


def test_heads_that_share_values_share_scales() -> None:
    x = inputs(100, 128)
    floats = np.random.default_rng(4).standard_normal((96, 128)).astype(np.float32)
    scales = awq.search(np.abs(x).mean(0), x, [floats], [lambda w: nearest("q4_0", w)], 2, 32)
    assert scales is not None
    runs = scales.reshape(2, 2, 32)
    np.testing.assert_array_equal(runs[:, 0], runs[:, 1])
    np.testing.assert_array_equal(awq.one_of_repeats(scales, 2, 32), runs[:, 0].reshape(-1))


def test_where_nothing_is_lost_nothing_is_scaled() -> None:
    x = inputs(100, 64)
    assert awq.search(np.abs(x).mean(0), x, [x[:32]], [lambda w: w], 1, 64) is None


@pytest.mark.parametrize("name", CONFIGS)
def test_scaling_changes_no_output(tmp_path: Path, name: str) -> None:
    """Whatever the scales, and in every family: the same logits but for rounding."""
    path, scaled_path = tmp_path / "plain.gguf", tmp_path / "scaled.gguf"
    file = as_gguf(CONFIGS[name])
    path.write_bytes(file.bytes())
    rng = np.random.default_rng(5)
    with ModelFile(path) as source:
        config = read_config(source)
        changed: dict[str, bytes] = {}
        for i in range(config.layers):
            tensors = {n: source.tensor(n) for n in source.tensors if n.startswith(f"blk.{i}.")}
            dense = not any("_exps" in n for n in tensors)
            sites = {f"layers.{i}.{s}": () for s in ("qkv", "o", *(("gate_up", "down") if dense else ()))}
            scaled = Scaled("model", tensors, config, i)
            for group in groups(config, i, sites, scaled.has):
                width = (
                    config.queries
                    if group.site.endswith(".o")
                    else (config.hidden if group.site.endswith("down") else config.width)
                )
                scales = np.exp(rng.standard_normal(width // group.repeats)).astype(np.float32)
                wide = np.repeat(scales.reshape(-1, 1, group.size), group.repeats, axis=1).reshape(-1)
                scaled.apply(group, READERS[group.site.split(".")[-1]](i, tensors), wide)
            changed |= {t.name: t.raw.tobytes() for t in scaled.tensors() if t.name in scaled.changed}
    assert len(changed) >= 5 * config.layers
    for tensor in file.tensors:
        if tensor.name in changed:
            object.__setattr__(tensor, "raw", changed[tensor.name])
    scaled_path.write_bytes(file.bytes())
    a, b = logits_of(path, ids()), logits_of(scaled_path, ids())
    assert not np.array_equal(a, b)
    np.testing.assert_allclose(a, b, atol=2e-3)


def _named(*names: str) -> Any:
    return lambda i, tensors: [n for name in names if (n := f"blk.{i}.{name}.weight") in tensors]


READERS = {
    "qkv": _named("attn_q", "attn_k", "attn_v", "attn_qkv"),
    "o": _named("attn_output"),
    "gate_up": _named("ffn_gate", "ffn_up"),
    "down": _named("ffn_down"),
}


# --- whole models ------------------------------------------------------------------------------------------------


def divergence(model: Path, made: Path) -> float:
    """Mean KL over the golden sequence."""
    p, q = (x - np.log(np.exp(x).sum(1, keepdims=True)) for x in (logits_of(path, ids()) for path in (model, made)))
    return float((np.exp(p) * (p - q)).sum(1).mean())


def varied(directory: Path) -> Path:
    """A text with every byte: a few letters alone would leave most of what a tiny model knows unseen."""
    path = directory / "text"
    letters = np.random.default_rng(9).integers(32, 2000, 1500)
    path.write_text("".join(map(chr, letters)))
    return path


def shown(model: Path, out: Path, method: str, text: Path, form: str = "q4_0") -> Report:
    return quantize(model, out, Options(form, method=method, calibrate=text if method != "plain" else None))


@pytest.mark.parametrize("method", calibration.CALIBRATED)
@pytest.mark.parametrize("name", CONFIGS)
def test_every_family(tmp_path: Path, name: str, method: str) -> None:
    """A file that the package and Pagoda read, about as near to the model as the plain one; what could not be
    calibrated is said."""
    model, plain, out = (tmp_path / f"{n}.gguf" for n in ("model", "plain", "out"))
    model.write_bytes(as_gguf(CONFIGS[name]).bytes())
    text = varied(tmp_path)
    shown(model, plain, "plain", text)
    report = shown(model, out, method, text)
    assert {t.name for t in GGUFReader(out).tensors} == {t.name for t in report.tensors}
    by_method = {t.name: t.method for t in report.tensors if t.error > 0}
    mixture = any("_exps" in n for n in by_method)
    for tensor, how in by_method.items():
        left = "_exps" in tensor or re.match(r"token_embd|output\.", tensor)
        assert how == ("plain" if left else method), tensor
    assert any("chosen by a router" in note for note in report.notes) == mixture
    assert divergence(model, out) < 1.5 * divergence(model, plain)


@pytest.mark.parametrize("name", ["llama2", "phi3-short", "gemma3"])
def test_directories_are_calibrated_as_files_are(tmp_path: Path, name: str) -> None:
    """Rows change their places only when they are written: the method sees the model as it is."""
    tensors = weights(CONFIGS[name])
    directory = write_model(tmp_path / "hf", CONFIGS[name], tensors)
    text = varied(tmp_path)
    out, as_file, again = (tmp_path / f"{n}.gguf" for n in ("out", "file", "again"))
    quantize(directory, as_file, Options("f32"))
    shown(directory, out, "gptq", text)
    shown(as_file, again, "gptq", text)
    with ModelFile(out) as one, ModelFile(again) as other:
        for tensor in (n for n in one.tensors if n.startswith("blk.0.")):
            apart = np.abs(one.tensor(tensor).floats() - other.tensor(tensor).floats())
            assert np.mean(apart > 1e-6) < 0.02, tensor  # rounding in another order may tip a few


@pytest.mark.parametrize("method", calibration.CALIBRATED)
def test_it_is_nearer_than_plain_where_channels_differ(tmp_path: Path, method: str) -> None:
    """A model whose norms make some channels large, as real ones do."""
    model, plain, out = (tmp_path / f"{n}.gguf" for n in ("model", "plain", "out"))
    file = tiny_file(TinyShape(format="f32", embedding_format="f32", width=128, head_dim=32, ffn=256))
    for tensor in file.tensors:
        if tensor.name.endswith(("attn_norm.weight", "ffn_norm.weight")):
            floats = np.frombuffer(tensor.raw, np.float32).copy()
            floats[::16] *= 12
            object.__setattr__(tensor, "raw", floats.tobytes())
    model.write_bytes(file.bytes())
    shown(model, plain, "plain", tmp_path)
    quantize(model, out, Options("q4_0", method=method))
    assert divergence(model, out) < 0.75 * divergence(model, plain)


def test_what_scaling_would_change_is_left_unscaled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The check on each layer, with a mistake put in."""
    real = Scaled.apply

    def wrong(self: Scaled, group: Any, readers: Any, scales: Floats) -> None:
        real(self, group, readers, scales)
        self.floats(readers[0])[...] *= np.float32(1.5)

    monkeypatch.setattr(Scaled, "apply", wrong)
    model, plain, out = (tmp_path / f"{n}.gguf" for n in ("model", "plain", "out"))
    model.write_bytes(tiny_file(TinyShape(format="f32")).bytes())
    report = quantize(model, out, Options("q4_0", method="awq"))
    assert any("layer 0: left unscaled, as scaling changes what it gives" in note for note in report.notes)
    quantize(model, plain, Options("q4_0"))
    with ModelFile(out) as made, ModelFile(model) as dense:
        infos: Mapping[str, TensorInfo] = dense.tensors
        for norm in (n for n in infos if n.endswith("_norm.weight")):
            np.testing.assert_array_equal(made.tensor(norm).floats(), dense.tensor(norm).floats())
    assert divergence(model, out) < 1.5 * divergence(model, plain)
