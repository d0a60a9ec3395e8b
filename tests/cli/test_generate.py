"""`pagoda generate`, and what every command does with errors and signals."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import pytest

from pagoda.catalog import BUILTINS


def test_streams_the_answer(invoke: Callable[..., Any]) -> None:
    result = invoke("generate", "héllo")
    assert result.exit_code == 0
    assert result.stdout == "[0]user: héllo\n\n"


def test_raw_leaves_the_template_out(invoke: Callable[..., Any]) -> None:
    assert invoke("generate", "hello", "--raw").stdout == "[0]hello\n"


def test_prompt_from_standard_input(invoke: Callable[..., Any]) -> None:
    assert invoke("generate", "-", "--raw", input="typed").stdout == "[0]typed\n"


def test_json_is_the_last_line(invoke: Callable[..., Any]) -> None:
    result = invoke("generate", "hello", "--raw", "--json", "--max-tokens", "5", "--seed", "9")
    *lines, last = result.stdout.splitlines()
    assert lines == ["[0]he"]
    report = json.loads(last)
    timings = report.pop("timings")
    assert report == {
        "text": "[0]he",
        "token_ids": [91, 48, 93, 104, 101],
        "finish_reason": "length",
        "prompt_tokens": 5,
        "completion_tokens": 5,
        "cached_tokens": 4,
        "seed": 9,
        "system_fingerprint": "fp_echo",
    }
    assert set(timings) == {"load_s", "queued_s", "ttft_s", "tpot_s", "total_s"}
    assert 0 <= timings["ttft_s"] <= timings["total_s"]


def test_why_is_told_on_standard_error(invoke: Callable[..., Any]) -> None:
    result = invoke("generate", "hello", "--raw", "--explain", "--model", "real-engine")
    assert result.stdout == "[0]hello\n"
    assert result.stderr.splitlines() == [
        "cache: 0 of 5 prompt tokens found, in 0 pages",
        'cache: nothing that begins so is kept (never_seen), at character 0: "|hello"',
    ]
    off = invoke("generate", "hello", "--raw", "--explain", "--json", "--no-prefix-cache", "--model", "real-engine")
    (why,) = json.loads(off.stdout.splitlines()[-1])["explain"]["cache"]
    assert (why["cause"], why["matched_tokens"], why["prompt"]) == ("off", 0, "|hello")


def test_a_drawn_seed_is_told(invoke: Callable[..., Any]) -> None:
    seeds = {json.loads(invoke("generate", "x", "--json").stdout.splitlines()[-1])["seed"] for _ in range(3)}
    assert len(seeds) > 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("generate", "x", "--temperature", "3"), "temperature must be"),
        (("generate", "x", "--max-tokens", "0"), "max_tokens must be"),
        (("generate", "x" * 600), "607 tokens"),
        (("generate", "x", "--threads", "0"), "threads must be positive"),
        (("generate", "x", "--temperature", "nan"), "temperature must be"),
    ],
)
def test_an_error_is_one_line(invoke: Callable[..., Any], arguments: tuple[str, ...], words: str) -> None:
    result = invoke(*arguments)
    assert result.exit_code == 1
    assert result.stderr.startswith("pagoda: ")
    assert result.stderr.count("\n") == 1
    assert words in result.stderr
    assert result.stdout == ""


@pytest.mark.parametrize("arguments", [("generate",), ("generate", "x", "--nope"), ("nope",), ("serve", "--port", "x")])
def test_wrong_usage(invoke: Callable[..., Any], arguments: tuple[str, ...]) -> None:
    result = invoke(*arguments)
    assert result.exit_code == 2
    assert "Usage: pagoda" in result.stderr


def test_unknown_model() -> None:
    done = run("-m", "pagoda", "generate", "x", "--model", "nope")
    assert done.returncode == 1
    assert done.stderr.startswith("pagoda: no model or file is named 'nope'")
    assert done.stderr.count("\n") == 1


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=False)


def test_version_and_module() -> None:
    done = run("-m", "pagoda", "--version")
    assert done.returncode == 0
    assert done.stdout.startswith("pagoda ")


def test_help_is_light() -> None:
    """No command's help may bring in what only its run needs: --help is to answer in an instant."""
    script = (
        "import sys\n"
        "sys.argv = ['pagoda', '--help']\n"
        "from pagoda.cli import main\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "heavy = {'numpy', 'tokenizers', 'starlette', 'uvicorn', 'msgspec', 'jinja2', 'prometheus_client'}\n"
        "print('HEAVY', sorted(heavy & set(sys.modules)))\n"
    )
    done = run("-c", script)
    assert done.stdout.splitlines()[-1] == "HEAVY []"
    for command in ("generate", "chat", "serve", "pull"):
        assert command in done.stdout


@pytest.mark.parametrize("command", ["generate", "chat", "serve", "pull", "doctor", "plan", "cache"])
def test_help_teaches_by_example(invoke: Callable[..., Any], command: str) -> None:
    result = invoke(command, "--help")
    assert result.exit_code == 0
    assert f"Example: pagoda {command}" in " ".join(result.stdout.split())


def test_help_of_pull_names_the_built_in_models(invoke: Callable[..., Any]) -> None:
    text = " ".join(invoke("pull", "--help").stdout.split())
    for name in BUILTINS:
        assert name in text


def test_ctrl_c(spawn: Callable[..., subprocess.Popen[str]]) -> None:
    process = spawn("--step-s", "0.05", "generate", "x" * 100)
    assert process.stdout is not None
    assert process.stdout.read(3) == "[0]"
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=10)
    assert (process.returncode, stderr) == (130, "")


def test_ctrl_c_while_loading(spawn: Callable[..., subprocess.Popen[str]]) -> None:
    process = spawn("generate", "x", "--model", "slow-to-load")
    assert process.stderr is not None
    assert process.stderr.readline() == "loading\n"
    process.send_signal(signal.SIGINT)
    assert process.wait(10) == 130
    assert process.stderr.read() == ""


def test_broken_pipe(spawn: Callable[..., subprocess.Popen[str]]) -> None:
    process = spawn("--step-s", "0.01", "generate", "x" * 200)
    assert process.stdout is not None
    assert process.stderr is not None
    assert process.stdout.read(1) == "["
    process.stdout.close()
    began = time.monotonic()
    assert process.wait(10) == 1
    assert time.monotonic() - began < 5
    assert process.stderr.read() == ""
    process.stdout = None
