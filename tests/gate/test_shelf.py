"""Verdicts on disk: what is written is read, and what is damaged is as good as none."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pagoda.gate import shelf

from .worlds import a_verdict


@pytest.fixture(autouse=True)
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PAGODA_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "verdicts"


def test_what_is_kept_is_recalled() -> None:
    assert shelf.every() == []
    assert shelf.recall("pagoda-0") is None
    first, second = a_verdict(), a_verdict("pagoda-9", quantize="q4_k:0,2", date="2026-01-01T00:00:00Z")
    shelf.keep(first)
    shelf.keep(second)
    assert shelf.recall("pagoda-0") == first
    assert shelf.every() == [second, first]
    later = a_verdict(date="2026-03-01T00:00:00Z")
    shelf.keep(later)
    assert shelf.every() == [second, later]


def changed(verdict: Any, **fields: Any) -> bytes:
    return json.dumps({"version": shelf.VERSION, "verdict": {**verdict, **fields}}).encode()


def test_a_damaged_file_is_none(directory: Path) -> None:
    shelf.keep(a_verdict())
    (file,) = directory.iterdir()
    whole = file.read_bytes()
    content = json.loads(whole)["verdict"]
    wrong = [
        b"", whole[: len(whole) // 2], b"\xff\xfe", b"[]", b'{"version": 1}',
        whole.replace(b'"version": %d' % shelf.VERSION, b'"version": 999'),
        changed(content, date=3), changed(content, findings=[{}]), changed(content, lengths=None),
    ]  # fmt: skip
    for damaged in wrong:
        assert damaged != whole
        file.write_bytes(damaged)
        assert shelf.recall("pagoda-0") is None, damaged
        assert shelf.every() == [], damaged
    shelf.keep(a_verdict())
    assert shelf.recall("pagoda-0") == a_verdict(), "written anew"


def test_a_file_under_another_name_is_not_a_verdict_on_that(directory: Path) -> None:
    shelf.keep(a_verdict())
    (directory / "pagoda-0.json").rename(directory / "pagoda-7.json")
    assert shelf.recall("pagoda-7") is None


def test_what_is_no_file_is_passed_over(directory: Path) -> None:
    (directory / "pagoda-0.json").mkdir(parents=True)
    assert shelf.every() == []
