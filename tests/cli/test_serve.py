"""`pagoda serve` as a process: the ready line, signals, and the exit codes."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import openai
import pytest

Spawn = Callable[..., subprocess.Popen[str]]


def ready(process: subprocess.Popen[str]) -> str:
    """The url of the ready line."""
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line.startswith("ready http://127.0.0.1:"), line
    return line.removeprefix("ready ").strip()


@contextmanager
def streaming(url: str, length: int) -> Iterator[HTTPResponse]:
    """A stream under way."""
    connection = HTTPConnection(urlsplit(url).netloc, timeout=20)
    body = {"model": "echo", "prompt": "x" * length, "max_tokens": length, "stream": True}
    connection.request("POST", "/v1/completions", json.dumps(body))
    with closing(connection), connection.getresponse() as answer:
        assert answer.readline().startswith(b"data: ")
        yield answer


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_serves_and_stops(spawn: Spawn, number: signal.Signals) -> None:
    process = spawn("serve", "--port", "0")
    url = ready(process)
    with urllib.request.urlopen(f"{url}/health", timeout=10) as answer:  # it answers at once
        assert answer.status == 200
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        text = client.completions.create(model="echo", prompt="hi").choices[0].text
        assert text == "[0]hi"
        process.send_signal(number)
        stdout, stderr = process.communicate(timeout=15)
    assert (process.returncode, stdout, stderr) == (0, "", "")


def test_streams_under_way_are_finished(spawn: Spawn) -> None:
    process = spawn("--step-s", "0.01", "serve", "--port", "0")
    url = ready(process)
    with streaming(url, 100) as answer:
        process.send_signal(signal.SIGTERM)
        assert answer.read().endswith(b"data: [DONE]\n\n")
    assert process.wait(15) == 0
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(f"{url}/health", timeout=2)


def test_what_is_left_after_the_drain_says_so(spawn: Spawn) -> None:
    process = spawn("--step-s", "0.02", "serve", "real-engine", "--port", "0", "--drain-timeout", "0.5")
    url = ready(process)
    with streaming(url, 200) as answer:
        began = time.monotonic()
        process.send_signal(signal.SIGTERM)
        events = answer.read()
        assert 0.4 < time.monotonic() - began < 3
    assert b'"finish_reason":"shutdown"' in events
    assert events.endswith(b"data: [DONE]\n\n")
    assert process.wait(15) == 0


def test_keys_targets_and_vllms_names(spawn: Spawn, tmp_path: Path) -> None:
    file = tmp_path / "keys.toml"
    made = [spawn("keys", "new", name, "--file", str(file)).communicate(timeout=15)[0].strip() for name in ("a", "b")]
    options = ["--api-keys", str(file), "--ttft-target", "5000", "--metrics-compat", "vllm", "--host", "0.0.0.0"]
    process = spawn("serve", "real-engine", "--port", "0", *options)
    url = ready(process)
    for key in ("nobody", made[0]):
        with openai.OpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0) as client:
            if key == "nobody":
                with pytest.raises(openai.AuthenticationError):
                    client.completions.create(model="echo", prompt="hi")
            else:
                assert client.completions.create(model="echo", prompt="hi").choices[0].text == "[0]hi"
    text = file.read_text()
    file.write_text(text[text.index('[keys."b"]') :].replace('[keys."b"]', '[keys."b"]\nadministrator = true'))
    process.send_signal(signal.SIGHUP)
    time.sleep(0.2)
    request = urllib.request.Request(f"{url}/metrics", headers={"authorization": f"Bearer {made[1]}"})
    with urllib.request.urlopen(request, timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    assert 'vllm:num_requests_running{engine="0",model_name="echo"} 0.0' in lines
    assert any(line.startswith("pagoda_step_prediction_error_count") and float(line.split()[1]) > 16 for line in lines)
    with (
        openai.OpenAI(base_url=f"{url}/v1", api_key=made[0], max_retries=0) as client,
        pytest.raises(openai.AuthenticationError),
    ):
        client.completions.create(model="echo", prompt="hi")


def test_other_machines_are_served_only_with_keys(spawn: Spawn) -> None:
    process = spawn("serve", "slow-to-load", "--port", "0", "--host", "0.0.0.0")
    _, stderr = process.communicate(timeout=15)
    assert process.returncode == 1
    assert "could use this server" in stderr
    assert "--insecure" in stderr


def test_second_ctrl_c_leaves_at_once(spawn: Spawn) -> None:
    process = spawn("--step-s", "0.1", "serve", "--port", "0")
    with streaming(ready(process), 200):
        process.send_signal(signal.SIGINT)
        time.sleep(0.5)
        assert process.poll() is None
        began = time.monotonic()
        process.send_signal(signal.SIGINT)
        assert process.wait(10) == 130
        assert time.monotonic() - began < 2


def test_dead_engine_ends_the_process(spawn: Spawn) -> None:
    process = spawn("--step-s", "0.05", "serve", "--port", "0")
    with streaming(ready(process), 200) as answer:
        process.send_signal(signal.SIGUSR1)
        events = answer.read()
    assert b'"error":{"message":"the test killed it"' in events
    assert b"[DONE]" not in events
    _, stderr = process.communicate(timeout=15)
    assert process.returncode == 1
    assert "pagoda: the engine died: the test killed it" in stderr


def test_port_in_use_is_known_before_loading(spawn: Spawn) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        process = spawn("serve", "slow-to-load", "--port", str(port))
        _, stderr = process.communicate(timeout=15)
    assert process.returncode == 1
    assert stderr == f"pagoda: cannot listen on 127.0.0.1:{port}: Address already in use; --port 0 takes a free port\n"


def test_served_name_and_caps(spawn: Spawn) -> None:
    process = spawn("serve", "--port", "0", "--served-model-name", "my model", "--max-output-tokens", "4")
    url = ready(process)
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        assert [model.id for model in client.models.list()] == ["my model"]
        assert client.completions.create(model="my model", prompt="hi").choices[0].text == "[0]h"
    with urllib.request.urlopen(f"{url}/metrics", timeout=10) as answer:
        assert b'pagoda_info{fingerprint="fp_echo",model="my model",page_size="16"} 1.0' in answer.read()


@pytest.mark.parametrize(
    ("text", "size"), [("1000", 1000), ("512M", 512 * 2**20), ("2GiB", 2**31), ("3 kb", 3072), ("1.5G", 0), ("x", 0)]
)
def test_bytes(text: str, size: int) -> None:
    import typer

    from pagoda.cli._options import parse_bytes

    if size:
        assert parse_bytes(text) == size
    else:
        with pytest.raises(typer.BadParameter, match="not a number of bytes"):
            parse_bytes(text)


def test_bad_options(invoke: Callable[..., Any]) -> None:
    for arguments in (
        ("--page-size", "7"),
        ("--kv-format", "int3"),
        ("--port", "70000"),
        ("--max-num-seqs", "0"),
        ("--tenant-pin-tokens", "0"),
        ("--warm", "nowhere"),
        ("--warm", "x", "--no-prefix-cache"),
    ):
        result = invoke("serve", *arguments)
        assert result.exit_code == 1, arguments
        assert result.stderr.startswith("pagoda: ")
