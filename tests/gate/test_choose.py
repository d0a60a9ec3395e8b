"""`auto` takes the smallest format that passed for this very model and arithmetic, and says why; else the default."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from pagoda import LLM
from pagoda.backends.cpu import CpuBackend
from pagoda.bench.plan import plan_model
from pagoda.catalog import open_model
from pagoda.cli._app import app
from pagoda.config import ModelConfig
from pagoda.errors import InvalidConfig
from pagoda.gate import shelf
from pagoda.gate.choose import open_settled
from pagoda.gate.verdict import Finding
from pagoda.llm import engine_config
from pagoda.runner.load import fingerprint
from tiny import tiny_model

from .worlds import a_verdict

FAILED = (Finding("divergence", 0.1, 0.0, 0.2, 0.02, False, 100),)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PAGODA_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tiny_model(tmp_path, format="f32", embedding_format="f32", layers=3))


def keep(path: str, quantize: str | None, kv_format: str, passed: bool = True, **fields: Any) -> None:
    config = engine_config(path, quantize=quantize, kv_format=kv_format)
    with open_model(path) as dense, open_model(path, quantize=quantize) as file:
        made = fingerprint(file.digest(), config, CpuBackend(threads=1))
        given = {"source": dense.digest(), "quantize": quantize, "kv_format": kv_format, "model": path, **fields}
    shelf.keep(a_verdict(made, **given, **({} if passed else {"findings": FAILED})))


def chosen(path: str, **options: str) -> tuple[str | None, str, str]:
    """Weights, KV format and the line."""
    with LLM(path, threads=1, kv_memory=2**20, **options) as llm, open_model(path) as dense:
        (line,) = llm.chosen
        forms = [(None, "f16"), *((v.quantize, v.kv_format) for v in shelf.every())]
        for quantize, kv_format in forms:
            config = engine_config(path, **{**options, "quantize": quantize, "kv_format": kv_format})
            with open_model(path, quantize=quantize) as file:
                if fingerprint(file.digest(), config, CpuBackend(threads=1)) == llm.system_fingerprint:
                    return quantize, kv_format, line
        raise AssertionError(f"{dense.name} runs in a format of its own: {line}")


def test_without_a_verdict_it_is_the_default_and_the_command(path: str) -> None:
    quantize, kv_format, line = chosen(path, kv_format="auto")
    assert (quantize, kv_format) == (None, "f16")
    assert line.endswith(f"pagoda eval {path}")
    assert chosen(path, quantize="auto")[2].endswith("--weights q8_0,q4_k")


def test_the_smallest_that_passed(path: str) -> None:
    keep(path, None, "int4", passed=False)
    keep(path, None, "int8")
    quantize, kv_format, line = chosen(path, kv_format="auto")
    assert (quantize, kv_format) == (None, "int8")
    assert "passed on 2026-01-31 against m, f16 KV: mean KL 1.00e-04" in line
    keep(path, None, "int4:1")
    assert chosen(path, kv_format="auto")[:2] == (None, "int4:1")
    keep(path, "q8_0", "f16")
    keep(path, "q4_0", "f16", passed=False)
    keep(path, "q4_0:0", "f16")
    assert chosen(path, quantize="auto")[:2] == ("q4_0:0", "f16")
    assert chosen(path, quantize="auto", kv_format="auto")[:2] == ("q4_0:0", "f16")
    keep(path, "q4_0:0", "int8")
    assert chosen(path, quantize="auto", kv_format="auto")[:2] == ("q4_0:0", "int8")
    assert chosen(path, quantize="q8_0", kv_format="auto")[:2] == ("q8_0", "f16")


def test_failures_are_told(path: str) -> None:
    keep(path, None, "int4", passed=False)
    assert "int4 KV failed on 2026-01-31" in chosen(path, kv_format="auto")[2]


@pytest.mark.parametrize("change", ["activations", "file", "arithmetic", "source"])
def test_verdicts_on_something_else_do_not_count(path: str, change: str, monkeypatch: pytest.MonkeyPatch) -> None:
    keep(path, None, "int8", **({"source": "other"} if change == "source" else {}))
    if change == "file":
        Path(path).write_bytes(Path(str(tiny_model(Path(path).parent, format="f32", seed=4))).read_bytes())
    if change == "arithmetic":
        monkeypatch.setattr("pagoda.backends.cpu.ARITHMETIC", 999)
    options = {"activations": "int8"} if change == "activations" else {}
    assert chosen(path, kv_format="auto", **options)[1] == "f16"


def test_a_plan_settles_it_too(path: str) -> None:
    keep(path, None, "int8")
    plan = plan_model(engine_config(path, kv_format="auto"), memory=2**30)
    assert plan.sizing.kv_format == "int8"


def test_a_quantised_file_is_not_offered_weights(tmp_path: Path) -> None:
    path = str(tiny_model(tmp_path, embedding_format="q4_1"))
    assert chosen(path, quantize="auto")[2].endswith(f"pagoda eval {path}")


@pytest.mark.parametrize("command", [("generate", "hi", "-m"), ("chat",)])
def test_a_command_says_what_it_takes(path: str, command: tuple[str, ...]) -> None:
    keep(path, None, "int8")
    result = CliRunner().invoke(app, [*command, path, "-n", "1", "--kv-format", "auto"], input="")
    assert result.exit_code == 0, result.output
    assert "auto: int8 KV, which passed on 2026-01-31" in result.stderr
    assert "auto" not in result.stdout


def test_settings_stay(path: str) -> None:
    keep(path, None, "int8")
    config = engine_config(path, kv_format="auto", threads=1)
    file, settled, lines = open_settled(config)
    file.close()
    assert settled == replace(config, model=replace(config.model, kv_format="int8"))
    assert len(lines) == 1
    plain = engine_config(path, kv_format="int4")
    file, same, lines = open_settled(plain)
    file.close()
    assert same == plain
    assert lines == ()


BAD = [
    {"kv_format": "int4:"}, {"kv_format": "f16:1"}, {"kv_format": "int4:2,1"}, {"kv_format": "int4:1,1"},
    {"kv_format": "int4:a"}, {"quantize": "q8_0:1"}, {"quantize": "int4:1"}, {"kv_format": "auto:1"}, {"kv_format": ""},
]  # fmt: skip


@pytest.mark.parametrize("options", BAD)
def test_formats_that_are_none(options: dict[str, str]) -> None:
    with pytest.raises(InvalidConfig, match="the finer format"):
        ModelConfig(**options)
