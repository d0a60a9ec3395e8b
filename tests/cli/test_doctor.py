"""`pagoda doctor`: figures that a machine can have, soon enough, with every instruction set."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from typing import Any

import pytest

from pagoda.backends import _native
from pagoda.backends.cpu import isas


def doctor(*arguments: str, isa: str | None = None) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, **({} if isa is None else {"PAGODA_ISA": isa})}
    return subprocess.run(
        [sys.executable, "-m", "pagoda", "doctor", *arguments],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
    )


def sane(report: dict[str, Any]) -> None:
    """No machine of this age is outside these ranges, and the parts agree."""
    assert 1 <= report["cores"] <= report["affinity_cores"] <= os.cpu_count()  # type: ignore[operator]
    assert 2**28 < report["memory_free_bytes"] <= report["memory_limit_bytes"]
    assert 0.2 < report["read_gb_s"] < 5000
    assert 0.2 < report["read_one_thread_gb_s"] < 500
    assert set(report["peaks"]) == set(report["isas"]) == set(isas())
    for peak in report["peaks"].values():
        assert set(peak) == {"f32_gflop_s", "int16_gop_s", "int8_gop_s"}
        for speed in peak.values():
            assert 0.2 < speed < 20e3 * report["threads"]
    best, plain = report["peaks"][report["isas"][0]], report["peaks"]["scalar"]
    assert len(isas()) == 1 or all(best[kind] > 1.5 * plain[kind] for kind in best)


def test_json() -> None:
    began = time.monotonic()
    done = doctor("--json")
    assert time.monotonic() - began < 10
    assert (done.returncode, done.stderr) == (0, "")
    report = json.loads(done.stdout)
    assert set(report) == {
        "cores", "affinity_cores", "quota_cores", "memory_limit_bytes", "memory_free_bytes", "isas", "isa", "faults",
        "threads", "cache_bytes", "buffer_bytes", "read_gb_s", "read_one_thread_gb_s", "peaks", "seconds",
    }  # fmt: skip
    sane(report)
    assert report["faults"] == dict.fromkeys(isas(), "")


def test_scalar() -> None:
    done = doctor("--json", "--threads", "1", isa="scalar")
    report = json.loads(done.stdout)
    assert (report["isa"], report["threads"]) == ("scalar", 1)
    sane(report)


def test_table_says_units_and_what_is_limited() -> None:
    text = doctor("--threads", "1").stdout
    for words in ("GiB", "GB/s", "10^9 operations/s", *isas(), "Decoding reads every weight", "Prefill"):
        assert words in text
    assert "self-test     " + ", ".join(f"{isa} passed" for isa in isas()) in text


def test_an_instruction_set_that_is_not_here() -> None:
    done = doctor(isa="z80")
    assert done.returncode == 1
    assert done.stderr.startswith("pagoda: instruction set must be one of")


def test_the_native_measures_refuse_nonsense() -> None:
    pool = _native.Pool(1)
    with pytest.raises(ValueError, match="z80"):
        _native.multiply_adds(pool, "z80", "f32", 0.01)
    with pytest.raises(ValueError, match="f64"):
        _native.multiply_adds(pool, "scalar", "f64", 0.01)
    with pytest.raises(ValueError, match="2 MiB"):
        _native.ReadBuffer(pool, 1000)
    with pytest.raises(MemoryError):
        _native.ReadBuffer(pool, 2**50)
    assert _native.ReadBuffer(pool, 5 * 2**20).bandwidth(pool, "scalar", 0.01) > 1e8
