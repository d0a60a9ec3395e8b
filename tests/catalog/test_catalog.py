"""Names to files, remembered digests, and the `pull` command."""

from __future__ import annotations

import hashlib
import json
import os
import threading
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from pagoda import catalog
from pagoda.catalog import ModelFile, digest, directory
from pagoda.cli.pull import pull
from pagoda.errors import DownloadError, ModelFileError, UnknownModel
from tiny import tiny_model


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PAGODA_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tiny_model(tmp_path)
    os.utime(path, (1, 1))
    return path


def settle(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take files just written for old ones."""
    monkeypatch.setattr(digest, "_TICK_NS", -(10**12))


# --- names


def test_a_path_is_itself(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert catalog.resolve(str(model)) == catalog.resolve(model) == model
    monkeypatch.chdir(model.parent)
    assert catalog.resolve(model.name) == Path(model.name)
    with catalog.open_model(model.name) as file:
        assert file.architecture == "llama"


def test_a_built_in_name_comes_before_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("smollm2").write_bytes(b"")
    with pytest.raises(DownloadError, match="smollm2: it is not in the cache"):
        catalog.resolve("smollm2", offline=True)
    assert catalog.resolve("./smollm2") == Path("smollm2")


@pytest.mark.parametrize(
    "name", ["smollm3", "/nowhere/model.gguf", "models/absent.gguf", "", "a\0b", "x" * 5000, "./a/b", "~no_such_user/b"]
)
def test_unknown_names(name: str) -> None:
    with pytest.raises(UnknownModel, match=r"built-in models are smollm2, gemma3-270m, others are paths"):
        catalog.resolve(name)


def test_the_table_is_sound() -> None:
    for name, builtin in catalog.BUILTINS.items():
        assert builtin.name == name
        assert len(builtin.sha256) == 64
        assert int(builtin.sha256, 16) > 0
        assert builtin.licence
        assert builtin.wheels
        assert 0 < builtin.download_size < builtin.size * 1.01


def test_the_cache_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    assert directory.cache_directory().name == "cache"
    monkeypatch.delenv("PAGODA_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/x")
    assert directory.cache_directory() == Path("/x/pagoda")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/home/someone")
    assert directory.cache_directory() == Path("/home/someone/.cache/pagoda")


# --- digests


def test_a_digest_is_remembered(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settle(monkeypatch)
    expected = hashlib.sha256(model.read_bytes()).hexdigest()
    with ModelFile(model) as file:
        assert file.digest() == expected
    monkeypatch.setattr(digest, "_hash", lambda _: pytest.fail("hashed again"))
    monkeypatch.chdir(model.parent)
    with ModelFile(model.name) as file:
        assert file.digest() == expected


def test_an_edited_file_has_a_new_digest(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settle(monkeypatch)
    with ModelFile(model) as file:
        before = file.digest()
    content = bytearray(model.read_bytes())
    content[-1] ^= 1
    model.write_bytes(content)
    os.utime(model, (1, 1))  # same size, same time of modification
    with ModelFile(model) as file:
        assert file.digest() == hashlib.sha256(content).hexdigest() != before


def test_a_file_just_written_is_not_remembered(model: Path, cache: Path) -> None:
    model.write_bytes(model.read_bytes())
    with ModelFile(model) as file:
        file.digest()
    assert not (cache / "digests").exists()


@pytest.mark.parametrize("nonsense", [b"", b"abc", b"\xff" * 64, b"A" * 64])
def test_a_damaged_memory_is_ignored(
    model: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, nonsense: bytes
) -> None:
    settle(monkeypatch)
    with ModelFile(model) as file:
        expected = file.digest()
        (memory,) = (cache / "digests").iterdir()
        memory.write_bytes(nonsense)
        assert file.digest() == expected
    assert memory.read_text() == expected


def test_a_cache_that_cannot_be_written_does_no_harm(model: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settle(monkeypatch)
    cache.write_text("in the way")
    with ModelFile(model) as file:
        assert file.digest() == hashlib.sha256(model.read_bytes()).hexdigest()


def test_a_file_that_changes_while_it_is_hashed(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = digest._hash

    def meddle(descriptor: int) -> str:
        found = honest(descriptor)
        os.truncate(model, 100)
        return found

    monkeypatch.setattr(digest, "_hash", meddle)
    with ModelFile(model) as file, pytest.raises(ModelFileError, match="changed while it was being read"):
        file.digest()


# --- files that are whole or not there


def test_write_whole_leaves_the_old_or_the_new(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "deep" / "file"
    directory.write_whole(path, b"old")

    def fail(source: str, target: Path) -> None:
        raise OSError("no")

    monkeypatch.setattr(directory.os, "replace", fail)
    with pytest.raises(OSError, match="no"):
        directory.write_whole(path, b"new")
    assert [p.read_bytes() for p in path.parent.iterdir()] == [b"old"]


def test_the_lock_keeps_others_out_until_it_is_let_go(tmp_path: Path) -> None:
    waits, order = [], []
    inside, leave = threading.Event(), threading.Event()

    def first() -> None:
        with directory.locked(tmp_path / "a" / "lock", lambda: None):
            inside.set()
            leave.wait(30)
            order.append("first")

    def waiting() -> None:
        waits.append(1)
        leave.set()

    thread = threading.Thread(target=first)
    thread.start()
    assert inside.wait(30)
    with directory.locked(tmp_path / "a" / "lock", waiting):
        order.append("second")
    thread.join()
    assert order == ["first", "second"]
    assert waits


# --- the command


@pytest.fixture
def command(model: Path, monkeypatch: pytest.MonkeyPatch) -> typer.Typer:
    app = typer.Typer(add_completion=False)
    app.command()(pull)
    return app


def test_pull_prints_what_it_has(command: typer.Typer, model: Path) -> None:
    result = CliRunner().invoke(command, [str(model)])
    assert result.exit_code == 0
    assert str(model) in result.stdout
    assert hashlib.sha256(model.read_bytes()).hexdigest() in result.stdout


def test_pull_prints_only_the_path(command: typer.Typer, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(model.parent)
    result = CliRunner().invoke(command, [model.name, "--print-path"])
    assert (result.exit_code, result.stdout) == (0, f"{model.resolve()}\n")


def test_pull_prints_json(command: typer.Typer, model: Path) -> None:
    result = CliRunner().invoke(command, [str(model), "--json"])
    assert json.loads(result.stdout) == {
        "name": str(model),
        "path": str(model),
        "bytes": model.stat().st_size,
        "sha256": hashlib.sha256(model.read_bytes()).hexdigest(),
        "licence": None,
    }


def test_pull_shows_progress_on_stderr_only(command: typer.Typer, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def resolve(name: str, *, progress: catalog.Progress, offline: bool, refresh: bool) -> Path:
        progress(0, 2_000_000)
        progress(2_000_000, 2_000_000)
        return model

    monkeypatch.setattr(catalog, "resolve", resolve)
    result = CliRunner().invoke(command, ["smollm2", "--print-path"])
    assert result.stdout == f"{model}\n"
    assert "fetching smollm2" in result.stderr
    assert "2.0/2.0 MB" in result.stderr


def test_pull_offline_passes_the_error_on(command: typer.Typer) -> None:
    result = CliRunner().invoke(command, ["smollm2", "--offline"])
    assert result.exit_code == 1
    assert isinstance(result.exception, DownloadError)


def test_pull_interrupted_says_how_to_go_on(command: typer.Typer, monkeypatch: pytest.MonkeyPatch) -> None:
    def resolve(name: str, *, progress: catalog.Progress, offline: bool, refresh: bool) -> Path:
        progress(1, 2)
        raise KeyboardInterrupt

    monkeypatch.setattr(catalog, "resolve", resolve)
    result = CliRunner().invoke(command, [])
    assert result.exit_code == 130
    assert "`pagoda pull smollm2` goes on from here" in result.stderr
