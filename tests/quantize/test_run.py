"""Runs that are interrupted, refused or starved: files appear whole or not at all, and a second run ends the first."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from gguf_writer import File, Tensor, stored
from pagoda.cli._app import app
from pagoda.errors import InvalidConfig, ModelFileError
from pagoda.quantize import METHODS, Options, quantize
from pagoda.quantize.unfinished import at, directory_of
from tiny import TinyShape, metadata, tiny_file

DENSE = TinyShape(format="f32", embedding_format="f32", layers=3)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PAGODA_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "dense.gguf"
    path.write_bytes(tiny_file(DENSE).bytes())
    return path


def stopping(after: int) -> Callable[[int, int], None]:
    """A progress that is Ctrl-C at its call number `after`."""
    calls = iter(range(after))

    def progress(done: int, total: int) -> None:
        if next(calls, None) is None:
            raise KeyboardInterrupt

    return progress


@pytest.mark.parametrize("method", METHODS)
def test_stopped_anywhere_it_goes_on_to_the_same_bytes(model: Path, method: str) -> None:
    """Each attempt is stopped a little later than the one before."""
    whole, out = model.with_name("whole.gguf"), model.with_name("out.gguf")
    options = Options("q4_0", method=method, tokens=100, threads=1)
    first = quantize(model, whole, options)
    stops = 0
    while not out.exists():
        try:
            second = quantize(model, out, options, progress=stopping(5 * stops + 2))
        except KeyboardInterrupt:
            stops += 1
            assert directory_of(out).exists()
            assert not out.exists()
    assert stops > 2
    assert out.read_bytes() == whole.read_bytes()
    assert replace(second, path="") == replace(first, path="")
    assert not directory_of(out).exists()


def test_killed_it_goes_on(model: Path, tmp_path: Path) -> None:
    whole, out = model.with_name("whole.gguf"), model.with_name("out.gguf")
    script = f"""
        import time
        from pagoda.quantize import Options, quantize
        def slow(done, total): time.sleep(0.05)
        quantize({str(model)!r}, {str(out)!r}, Options("q4_0", method="gptq", tokens=100), progress=slow)
    """
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "OPENBLAS_NUM_THREADS": "1"}
    child = subprocess.Popen([sys.executable, "-c", textwrap.dedent(script)], env=environment)
    journal = directory_of(out) / "journal"
    while not journal.exists() or journal.read_bytes().count(b"\n") < 3:
        assert child.poll() is None
        time.sleep(0.01)
    child.send_signal(signal.SIGKILL)
    child.wait()
    assert not out.exists()
    said: list[str] = []
    quantize(model, out, Options("q4_0", method="gptq", tokens=100), tell=said.append)
    quantize(model, whole, Options("q4_0", method="gptq", tokens=100))
    assert out.read_bytes() == whole.read_bytes()
    assert any("going on: " in each for each in said)


@pytest.mark.parametrize("harm", ["half a line", "zeros", "short data"])
def test_what_a_crash_tore_is_made_again(model: Path, harm: str) -> None:
    whole, out = model.with_name("whole.gguf"), model.with_name("out.gguf")
    options = Options("q5_0")
    quantize(model, whole, options)
    with pytest.raises(KeyboardInterrupt):
        quantize(model, out, options, progress=stopping(20))
    journal, data = directory_of(out) / "journal", directory_of(out) / "data"
    if harm == "half a line":
        journal.write_bytes(journal.read_bytes() + b'{"label": "lay')
    elif harm == "zeros":
        journal.write_bytes(journal.read_bytes() + bytes(40) + b"\n")
    else:
        os.truncate(data, data.stat().st_size // 2)
    quantize(model, out, options)
    assert out.read_bytes() == whole.read_bytes()


def test_what_another_job_left_is_thrown_away(model: Path) -> None:
    whole, out = model.with_name("whole.gguf"), model.with_name("out.gguf")
    with pytest.raises(KeyboardInterrupt):
        quantize(model, out, Options("q4_0"), progress=stopping(20))
    report = quantize(model, out, Options("q4_1"))
    quantize(model, whole, Options("q4_1"))
    assert "of another job and has been thrown away" in report.notes[0]
    assert out.read_bytes() == whole.read_bytes()


def test_what_is_refused(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = model.with_name("out.gguf")
    for wrong, match in (
        ({"format": "q3_k"}, "format must be one of"),
        ({"outer": "iq4_nl"}, "format must be one of"),
        ({"method": "best"}, "method must be one of"),
        ({"calibrate": "text"}, "changes nothing with method plain"),
        ({"format": "f16", "method": "awq"}, "few bits"),
        ({"tokens": 0}, "at least 1"),
    ):
        with pytest.raises(InvalidConfig, match=match):
            Options(**wrong)
    out.write_bytes(b"mine")
    with pytest.raises(InvalidConfig, match="there already: name another file, or replace it with --force"):
        quantize(model, out)
    with pytest.raises(InvalidConfig, match=r"there already: name another file$"):
        quantize(model, model.parent)
    with pytest.raises(InvalidConfig, match="is the model itself"):
        quantize(model, model, force=True)
    with pytest.raises(InvalidConfig, match="cannot read the calibration text"):
        quantize(model, out, Options(method="awq", calibrate="nowhere"), force=True)
    assert out.read_bytes() == b"mine"
    quantize(model, out, force=True)
    assert out.read_bytes()[:4] == b"GGUF"
    with at(model.with_name("busy.gguf"), "job"), pytest.raises(InvalidConfig, match="another process is writing"):
        quantize(model, model.with_name("busy.gguf"))
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(10**9, 10**9, 10**6))
    with pytest.raises(InvalidConfig, match=r"has 1 MB free, and 1\d MB are needed"):
        quantize(model, model.with_name("large.gguf"))
    assert not directory_of(model.with_name("large.gguf")).exists()


def test_a_full_disk_is_told_and_the_rest_is_kept(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out, calls = model.with_name("out.gguf"), iter(range(4))
    real = os.fsync

    def full(descriptor: int) -> None:
        if next(calls, None) is None:
            raise OSError(28, "No space left on device")
        real(descriptor)

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(InvalidConfig, match="No space left on device; the same command will go on"):
        quantize(model, out)
    monkeypatch.undo()
    assert directory_of(out).exists()


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", ["blk.1.attn_q.weight", "blk.1.ffn_norm.weight"])
def test_numbers_that_are_none_are_refused_by_name(tmp_path: Path, method: str, name: str) -> None:
    file = tiny_file(DENSE)

    def spoiled(tensor: Tensor) -> Tensor:
        floats = np.frombuffer(tensor.raw, np.float32).copy()
        floats[5] = np.nan
        return stored(name, floats.reshape(tensor.shape), "f32")

    model = tmp_path / "bad.gguf"
    model.write_bytes(replace(file, tensors=[spoiled(t) if t.name == name else t for t in file.tensors]).bytes())
    with pytest.raises(ModelFileError, match=rf"tensor '{name}' has NaN"):
        quantize(model, tmp_path / "out.gguf", Options("q4_0", method=method, tokens=50))
    assert not (tmp_path / "out.gguf").exists()


def test_a_quantised_model_is_taken_with_a_warning(tmp_path: Path) -> None:
    model = tmp_path / "small.gguf"
    model.write_bytes(tiny_file(TinyShape()).bytes())
    report = quantize(model, tmp_path / "out.gguf", Options("q4_1"))
    assert "is quantised already (q4_1, q8_0): what that has lost stays lost" in report.notes[0]
    assert not any(t.error for t in report.tensors)  # already so, and left as it is


def test_the_command(model: Path) -> None:
    out, runner = model.with_name("out.gguf"), CliRunner()
    told = runner.invoke(app, ["quantize", str(model), str(out), "--format", "q8_0"])
    assert told.exit_code == 0, told.output
    assert "before" in told.stdout
    assert "bits each" in told.stdout
    assert runner.invoke(app, ["quantize", str(model), str(out)]).exit_code == 1
    made = runner.invoke(
        app, ["quantize", str(model), str(out), "--force", "--json", "--method", "awq", "--tokens", "60"]
    )
    report: dict[str, Any] = json.loads(made.stdout)
    assert report["bytes_after"] < report["bytes_before"]
    assert {t["method"] for t in report["tensors"]} == {"plain", "awq"}


def test_ctrl_c_says_how_to_go_on(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(*arguments: Any, **more: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("pagoda.quantize.quantize", stopped)
    result = CliRunner().invoke(app, ["quantize", str(model), "out.gguf"])
    assert result.exit_code == 130
    assert "the same command goes on from here (out.gguf.unfinished" in result.stderr


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("method", "layers"), [("plain", 12), ("gptq", 3)])
def test_memory_stays_below_two_layers_and_the_largest_tensor(tmp_path: Path, method: str, layers: int) -> None:
    """Plain: of a model of 170 MB, whose layers have 12 MB each and whose embedding has 25."""
    shape = TinyShape(width=768, head_dim=192, ffn=1024, layers=layers, vocabulary=8192, format="f32")
    rng = np.random.default_rng(0)
    noise = rng.standard_normal(2**23).astype(np.float32).tobytes()
    small = replace(shape, width=32, head_dim=8, ffn=32, vocabulary=320, embedding_format="f32")
    wide = {32: 768, 16: 384, 320: 8192}
    tensors = []
    for tensor in tiny_file(small).tensors:
        grown = tuple(wide[n] for n in tensor.shape)
        if "ffn" in tensor.name and len(grown) == 2:
            grown = (768, 1024) if "down" in tensor.name else (1024, 768)
        tensors.append(Tensor(tensor.name, grown, "f32", noise[: 4 * int(np.prod(grown))]))
    model = tmp_path / "large.gguf"
    model.write_bytes(File(metadata(shape), tensors).bytes())
    layer = sum(len(t.raw) for t in tensors if t.name.startswith("blk.0."))
    largest = max(len(t.raw) for t in tensors)
    assert model.stat().st_size > (150e6 if method == "plain" else 4 * layer)
    script = f"""
        import resource
        from pagoda.quantize import Options, quantize
        import pagoda.backends.cpu, pagoda.quantize.calibration
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        quantize({str(model)!r}, {str(tmp_path / "out.gguf")!r}, Options("q4_0", method={method!r}, tokens=64))
        print(1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before))
    """
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "OPENBLAS_NUM_THREADS": "1"}
    grew = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], env=environment, capture_output=True, text=True, check=True
    )
    assert int(grew.stdout) < 2 * layer + largest, f"{int(grew.stdout) / 1e6:.0f} MB"
