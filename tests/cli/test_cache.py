"""`pagoda cache` against a server, and `pagoda serve --warm`."""

from __future__ import annotations

import json
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from cli.test_serve import ready
from pagoda.cli.cache import disk_lines
from pagoda.config import SchedulerConfig, ServerConfig
from pagoda.engine import Engine
from pagoda.obs.metrics import PrometheusObserver
from pagoda.server.cache import wire_disk
from pagoda.server.identity import Caller
from pagoda.types import CacheReport, DiskFault, DiskReport
from server.conftest import MODEL, Running, serving
from server.fakes import ByteTokenizer, EchoRunner
from server.test_disconnects import soon

Invoke = Callable[..., Any]
LINES = ({"name": "desk", "messages": [{"role": "system", "content": "You sell pagodas."}]}, {"text": "The handbook."})


@pytest.fixture
def server() -> Iterator[Running]:
    """Over the real engine; its administrator is who has the key."""
    observer = PrometheusObserver()
    engine = Engine(EchoRunner(), ByteTokenizer(), SchedulerConfig(), observer)  # type: ignore[arg-type]
    engine.start()

    def identify(request: Any) -> Caller:
        return Caller("root", request.headers.get("authorization") == "Bearer open sesame")

    with serving(engine, ByteTokenizer(), MODEL, ServerConfig(port=0), observer, identify) as running:
        yield running
    engine.close()


@pytest.fixture
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PAGODA_API_KEY", "open sesame")
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "warm.jsonl"
    path.write_text("\n".join(map(json.dumps, LINES)))
    return str(path)


def test_warm_inspect_clear(server: Running, key: None, invoke: Invoke, file: str) -> None:
    for _ in range(2):
        result = invoke("cache", "warm", server.url, file)
        assert result.stdout.splitlines() == [
            "pin-1 1 of 2 'desk': 32 tokens in 2 pages",
            "pin-2 2 of 2: 13 tokens in 1 pages",
        ]
    server.http.complete(prompt="The handbook. Page 1", max_tokens=1)
    told = invoke("cache", "inspect", server.url).stdout.splitlines()
    assert told[0] == "pages    64 of 16 tokens"
    assert told[1].endswith("0 used, 3 pinned, 2 cached, 59 free")
    assert any("13 of" in line for line in told)
    assert any("never_seen" in line and "requests" in line for line in told)
    assert "pin-1    everyone's 'desk': 32 tokens, 2 pages, 0 hits" in told
    assert "pin-2    everyone's: 13 tokens, 1 pages, 1 hits" in told
    runs = told[told.index("map of KV group 0, in runs: . free, c cached, u used, s shared, p pinned") + 1 :]
    letters = "".join(int(run[:-1]) * run[-1] for line in runs for run in line.split())
    assert (len(letters), letters.count("p"), letters.count("c")) == (64, 3, 2)
    found = json.loads(invoke("cache", "inspect", server.url, "--json").stdout)
    assert found["maps"] == [letters]
    assert found["pages"] == {"total": 64, "used": 0, "pinned": 3, "cached": 2, "free": 59}
    assert invoke("cache", "clear", server.url).stdout == "cleared 2 pages and 0 pins\n"
    assert invoke("cache", "clear", server.url, "--pins").stdout == "cleared 3 pages and 2 pins\n"
    soon(lambda: server.engine.cache_report().free == 64)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("inspect", "URL"), "GET /v1/cache is for administrators"),
        (("clear", "URL"), "DELETE /v1/cache is for administrators"),
        (("inspect", "http://127.0.0.1:1"), "cannot reach http://127.0.0.1:1/v1/cache: [Errno 111]"),
        (("inspect", "nonsense"), "cannot reach nonsense/v1/cache"),
        (("inspect", "URL/elsewhere"), "GET /elsewhere/v1/cache is not served"),
        (("warm", "URL", "nowhere.jsonl"), "cannot read the openings in nowhere.jsonl"),
    ],
)
def test_what_goes_wrong_is_told_in_a_line(
    server: Running, invoke: Invoke, arguments: tuple[str, ...], words: str
) -> None:
    result = invoke("cache", *(each.replace("URL", server.url) for each in arguments))
    assert result.exit_code == 1
    assert result.stderr.startswith(f"pagoda: {words}")
    assert result.stderr.count("\n") == 1


def test_a_line_that_the_server_refuses_is_named(server: Running, key: None, invoke: Invoke, tmp_path: Path) -> None:
    path = tmp_path / "warm.jsonl"
    path.write_text('{"text": "fine"}\n\n{"token_ids": [1000]}\n')
    result = invoke("cache", "warm", server.url, str(path))
    assert result.stdout == "pin-1 1 of 2: 4 tokens in 1 pages\n"
    assert result.stderr == f"pagoda: {path}, line 3: prompt: token ids run from 0 to 259, got 1000\n"


# serve --warm


def test_pinned_before_it_is_ready(spawn: Callable[..., subprocess.Popen[str]], file: str) -> None:
    process = spawn("serve", "real-engine", "--port", "0", "--warm", file)
    url = ready(process)
    assert status(url, "/health/ready") == 200
    with urllib.request.urlopen(f"{url}/v1/cache/pins", timeout=10) as answer:
        pins = json.load(answer)["data"]
    assert [(pin["name"], pin["tokens"], pin["shared"]) for pin in pins] == [("desk", 32, True), ("", 13, True)]
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=15)
    first, second = stderr.splitlines()
    assert first.startswith("warmed 1 of 2 'desk': 32 tokens in 2 pages, 0.")
    assert second.startswith("warmed 2 of 2: 13 tokens in 1 pages, 0.")
    assert process.returncode == 0


def test_probes_are_answered_while_it_warms(spawn: Callable[..., subprocess.Popen[str]], file: str) -> None:
    """A start that computes for minutes must not look dead, and must not get users."""
    port = str(free_port())
    process = spawn("--step-s", "1.0", "serve", "real-engine", "--port", port, "--warm", file)
    url, seen = f"http://127.0.0.1:{port}", set()
    until = time.monotonic() + 30
    while 200 not in {ready for _, ready in seen} and time.monotonic() < until:
        seen.add((status(url, "/health"), status(url, "/health/ready")))
        time.sleep(0.05)
    assert (200, 503) in seen
    assert ready(process) == url
    assert status(url, "/health/ready") == 200


def test_leaving_while_it_warms(spawn: Callable[..., subprocess.Popen[str]], file: str) -> None:
    port = str(free_port())
    process = spawn("--step-s", "0.5", "serve", "real-engine", "--port", port, "--warm", file)
    soon(lambda: status(f"http://127.0.0.1:{port}", "/health") == 200, 20)
    process.send_signal(signal.SIGTERM)
    stdout, stderr = process.communicate(timeout=15)
    assert (process.returncode, stdout) == (0, "")
    assert "pagoda:" not in stderr


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ('{"text": "fine"}\n{"text": 5}', "line 2: text must be a text, and not empty; got 5"),
        ('{"messages": [{"role": "wizard", "content": "x"}]}', "line 1: messages[0].role must be one of"),
        ('{"text": "fine"}\n\n{"token_ids": [9999]}', "line 3: prompt: token ids run from 0 to 259, got 9999"),
    ],
)
def test_a_bad_file_ends_the_start(
    spawn: Callable[..., subprocess.Popen[str]], tmp_path: Path, lines: str, words: str
) -> None:
    path = tmp_path / "warm.jsonl"
    path.write_text(lines)
    process = spawn("serve", "real-engine", "--port", "0", "--warm", str(path))
    stdout, stderr = process.communicate(timeout=20)
    assert (process.returncode, stdout) == (1, "")
    assert stderr.splitlines()[-1].startswith(f"pagoda: {path}, {words}")


def free_port() -> int:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port: int = taken.getsockname()[1]
        return port


def status(url: str, path: str) -> int:
    """The status of an answer; 0 if there is none."""
    try:
        with urllib.request.urlopen(f"{url}{path}", timeout=10) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code
    except OSError:
        return 0


def test_what_is_on_disk_is_told() -> None:
    report = DiskReport(5, 8192, 2**20, 7, 3, 1, ((DiskFault.DAMAGED, 2),), False, 1e-5, None)
    cache = CacheReport(16, 4, 0, 0, 0, 4, 0, (), ("....",), report)
    wire = wire_disk(cache)
    assert wire is not None
    told = msgspec.to_builtins(wire)
    assert told == {**asdict(report), "faults": {"damaged": 2}}
    assert disk_lines(told) == [
        "on disk  5 pages of every KV group; 8,192 of 1,048,576 bytes",
        "         7 saved, 3 restored, 1 dropped",
        "         nothing is written: the disk is full or refuses",
        "         damaged                2 files not used or not written",
    ]
    assert wire_disk(replace(cache, disk=None)) is None
