"""Hugging Face ids, against a hub on the loopback device."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from hub_server import HubServer, hub
from huggingface_hub import constants

from families.tiny_families import CONFIGS, weights
from hf_files import write_model
from pagoda import catalog
from pagoda.catalog.hub_files import HubId, choose
from pagoda.errors import DownloadError, ModelFileError, UnknownModel, UnsupportedModel
from tiny import tiny_model

REPO = "someone/tiny"


@pytest.fixture
def files(tmp_path: Path) -> dict[str, bytes]:
    """A small model's directory, in shards, with things that are not of it."""
    place = write_model(tmp_path / "source", CONFIGS["llama3"], weights(CONFIGS["llama3"]), shards=2)
    return {path.name: path.read_bytes() for path in place.iterdir()} | {
        "README.md": b"# Tiny",
        "pytorch_model.bin": b"x" * 1000,
        "consolidated.safetensors": b"y" * 1000,
        "onnx/model.onnx": b"z" * 1000,
    }


@pytest.fixture
def server(files: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    gguf = tiny_model(tmp_path).read_bytes()
    several = {f"tiny-{kind}.gguf": gguf for kind in ("Q4_0", "Q8_0", "Q4_K_M")}
    with hub({REPO: files, "someone/tiny-GGUF": several, "someone/only.torch": {"pytorch_model.bin": b""}}) as running:
        monkeypatch.setenv("PAGODA_CACHE", str(tmp_path / "cache"))
        monkeypatch.setenv("HF_ENDPOINT", running.url)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
        monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "no-token"))
        monkeypatch.delenv("HF_TOKEN", raising=False)
        yield running


# --- names


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a/b", HubId("a/b")),
        ("Org-1/Model.2_x@v1.0", HubId("Org-1/Model.2_x", "v1.0")),
        ("a/b:Q4_K_M", HubId("a/b", want="Q4_K_M")),
        ("a/b@refs/pr/3:sub/x.gguf", HubId("a/b", "refs/pr/3", "sub/x.gguf")),
        *(
            (text, None)
            for text in ("a", "a/b/c", "./a", "../a/b", "a/..", "~x/b", "/a/b", "a/b.gguf", "a/b:", "é/b", "")
        ),
    ],
)
def test_ids(text: str, expected: HubId | None) -> None:
    assert HubId.parse(text) == expected
    assert expected is None or str(expected) == text


SPLIT = [f"Q8_0/m-Q8_0-0000{i}-of-00003.gguf" for i in (1, 2, 3)]


@pytest.mark.parametrize(
    ("want", "names", "opened", "files"),
    [
        ("", ["x.gguf", "mmproj-x.gguf", "x.imatrix.gguf"], "x.gguf", 1),
        ("", ["x-q8_0.gguf", "x-q4_0.gguf", "x-f16.gguf"], "x-q4_0.gguf", 1),
        ("", ["x.Q4_K_M.gguf", "x.Q4_0.gguf", "x.Q4_1.gguf"], "x.Q4_K_M.gguf", 1),
        ("q8_0", ["x-q4_0.gguf", *SPLIT], SPLIT[0], 3),
        ("Q8_0", ["x-Q4_0.gguf", "x-IQ8_0.gguf", "x-Q8_0.gguf"], "x-Q8_0.gguf", 1),
        ("F16", ["model.safetensors", "config.json", "x-f16.gguf", "x-bf16.gguf"], "x-f16.gguf", 1),
        ("b/x.gguf", ["a/x.gguf", "b/x.gguf"], "b/x.gguf", 1),
    ],
)
def test_one_of_several_gguf_files(want: str, names: list[str], opened: str, files: int) -> None:
    chosen = choose(HubId("a/b", want=want), names)
    assert (chosen.opened, len(chosen.files)) == (opened, files)
    assert opened == chosen.files[0]


@pytest.mark.parametrize(
    ("want", "names", "message"),
    [
        ("", [], "neither model.safetensors nor a .gguf file"),
        ("", ["pytorch_model.bin"], r"it has pytorch_model.bin, which cannot be read"),
        ("", SPLIT[:2], "neither model.safetensors nor a .gguf file"),
        ("", ["../x.gguf", "/x.gguf", "a/../../x.gguf"], "neither"),
        (
            "",
            ["x-IQ1_S.gguf", "x-IQ2_S.gguf"],
            r"has 2 GGUF files: name one, as in a/b:Q4_K_M; there are x-IQ1_S.gguf, x-IQ2",
        ),
        ("Q5_0", ["x-Q4_0.gguf"], r"`:Q5_0` names none of its GGUF files; there are x-Q4_0.gguf"),
        ("Q4_0", ["x-Q4_0.gguf", "y-Q4_0.gguf"], r"names 2 of its GGUF files"),
        ("Q4_0", ["model.safetensors"], "has no GGUF file"),
    ],
)
def test_no_such_gguf_file(want: str, names: list[str], message: str) -> None:
    with pytest.raises(UnsupportedModel, match=message):
        choose(HubId("a/b", want=want), names)


# --- fetching


def test_a_directory_is_fetched_once(server: HubServer, files: dict[str, bytes]) -> None:
    seen: list[tuple[int, int]] = []
    path = catalog.resolve(REPO, progress=lambda done, total: seen.append((done, total)))
    names = {each.name for each in path.iterdir()}
    assert names == set(files) - {"README.md", "pytorch_model.bin", "consolidated.safetensors", "onnx/model.onnx"}
    assert all((path / name).read_bytes() == files[name] for name in names)
    total = sum(len(files[name]) for name in names)
    assert seen[-1] == (total, total)
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    with catalog.open_model(REPO) as model:
        assert model.architecture == "llama"
        assert model.tensor("token_embd.weight").floats().shape == model.tensors["token_embd.weight"].shape
    server.asked.clear()
    assert catalog.resolve(REPO) == catalog.resolve(REPO, offline=True) == path
    assert server.asked == [], "what is here is used without asking"


def test_a_gguf_file_by_its_kind(server: HubServer) -> None:
    path = catalog.resolve("someone/tiny-GGUF:Q8_0")
    assert path.name == "tiny-Q8_0.gguf"
    assert [each.name for each in path.parent.iterdir()] == [path.name], "the others stay where they are"
    assert catalog.resolve("someone/tiny-GGUF").name == "tiny-Q4_K_M.gguf"
    with catalog.open_model("someone/tiny-GGUF:Q8_0", offline=True) as model:
        assert model.architecture == "llama"
    assert catalog.api_name("someone/tiny-GGUF:Q8_0") == "someone/tiny-GGUF"


def test_a_path_comes_before_an_id(server: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path(REPO).mkdir(parents=True)
    assert catalog.resolve(REPO) == Path(REPO)
    assert catalog.api_name(REPO) == "tiny"
    assert server.asked == []


def test_only_refresh_finds_what_changed(server: HubServer, files: dict[str, bytes]) -> None:
    first = catalog.resolve(REPO)
    server.repositories[REPO]["chat_template.jinja"] = b"{{ messages }}"
    assert catalog.resolve(REPO) == first
    second = catalog.resolve(REPO, refresh=True)
    assert second != first
    assert (second / "chat_template.jinja").read_bytes() == b"{{ messages }}"
    assert catalog.resolve(REPO) == second
    assert catalog.resolve(f"{REPO}@{second.name}", offline=True) == second, "a commit is a revision too"


def test_an_interrupted_download_goes_on(
    server: HubServer, files: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the hub's own client; the file is whole in the end, and what is told of it never too much."""
    monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 50)
    server.cut = [100]
    seen: list[tuple[int, int]] = []
    path = catalog.resolve(REPO, progress=lambda done, total: seen.append((done, total)))
    assert any("bytes=100-" in each for each in server.asked)
    assert all((path / name).read_bytes() == files[name] for name in files if (path / name).exists())
    assert all(done <= total for done, total in seen)


def test_what_is_half_here_is_not_used(server: HubServer, caplog: pytest.LogCaptureFixture) -> None:
    path = catalog.resolve(REPO)
    (path / "config.json").unlink()
    with pytest.raises(
        DownloadError, match=rf"{REPO} is not in the cache, and fetching is switched off; run `pagoda pull"
    ):
        catalog.resolve(REPO, offline=True)
    assert catalog.resolve(REPO) == path
    assert (path / "config.json").exists()
    server.down = True
    assert catalog.resolve(REPO, refresh=True) == path
    assert "what is here is used" in caplog.text


def test_what_other_tools_fetched_is_used(server: HubServer, tmp_path: Path) -> None:
    from huggingface_hub import snapshot_download

    place = Path(snapshot_download(REPO, endpoint=server.url, cache_dir=tmp_path / "hub"))
    server.asked.clear()
    assert catalog.resolve(REPO, offline=True) == place
    (place / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(DownloadError, match="not in the cache"):
        catalog.resolve(REPO, offline=True)
    assert server.asked == []


# --- errors


def test_who_is_not_there(server: HubServer) -> None:
    with pytest.raises(UnknownModel, match=rf"no file is named no/body, and {server.url} has no model 'no/body'"):
        catalog.resolve("no/body")
    with pytest.raises(UnknownModel, match=rf"has {REPO}, but no revision 'v9'"):
        catalog.resolve(f"{REPO}@v9")
    with pytest.raises(UnsupportedModel, match=r"pytorch_model.bin, which cannot be read"):
        catalog.resolve("someone/only.torch")


def test_private_and_gated(server: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    server.token = "hf_secret"
    with pytest.raises(UnknownModel, match="set HF_TOKEN if it is private"):
        catalog.resolve(REPO)
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    assert catalog.resolve(REPO).is_dir()
    server.token, server.gated = "", True
    with pytest.raises(DownloadError, match=r"asks that its terms be accepted: do so at http.*/someone/tiny-GGUF"):
        catalog.resolve("someone/tiny-GGUF")


def test_a_hub_that_is_down(server: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    server.down = True
    with pytest.raises(DownloadError, match=rf"{REPO} could not be fetched from .*503.* run `pagoda pull {REPO}`"):
        catalog.resolve(REPO)
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(DownloadError, match=r"could not be fetched from http://127.0.0.1:9: .*refused"):
        catalog.resolve(REPO)


def test_a_lying_index_and_a_full_disk(server: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    index = {"weight_map": {"x": "../../etc/passwd"}}
    server.repositories[REPO]["model.safetensors.index.json"] = json.dumps(index).encode()
    with pytest.raises(ModelFileError, match="outside the directory"):
        catalog.open_model(REPO)
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=10))
    with pytest.raises(DownloadError, match="0 MB free"):
        catalog.resolve("someone/tiny-GGUF:Q4_0")


def test_pull_by_hand(server: HubServer, tmp_path: Path) -> None:
    environment = {
        **os.environ, "HF_ENDPOINT": server.url, "HF_HOME": str(tmp_path / "home"), "PAGODA_CACHE": str(tmp_path / "c")
    }  # fmt: skip
    command = [sys.executable, "-m", "pagoda", "pull", f"{REPO}"]
    done = subprocess.run([*command, "--json"], env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["bytes"] == sum(each.stat().st_size for each in Path(told["path"]).iterdir())
    assert len(told["sha256"]) == 64
    server.down = True
    again = subprocess.run([*command, "--print-path", "--offline"], env=environment, capture_output=True, text=True)
    assert (again.returncode, again.stdout.strip()) == (0, told["path"])
