"""`pagoda chat`: history, commands, and Ctrl-C, which stops the answer and not the program."""

from __future__ import annotations

import os
import pty
import select
import signal
import subprocess
from collections.abc import Callable
from typing import Any

import pytest

from server.fakes import ByteTokenizer


def test_history(invoke: Callable[..., Any]) -> None:
    result = invoke("chat", input="one\ntwo\n")
    assert result.exit_code == 0
    first = "[0]user: one\n"
    assert result.stdout == f"{first}\n[0]user: one\nassistant: {first}\nuser: two\n\n"


def test_commands(invoke: Callable[..., Any]) -> None:
    result = invoke("chat", "--system", "s", input="one\n/reset\n\n/help\n/nope\ntwo\n/exit\nthree\n")
    assert result.exit_code == 0
    assert result.stdout == "[0]system: s\nuser: one\n\n[0]system: s\nuser: two\n\n"
    for words in ("Forgotten.", "/reset  forget the conversation", "There is no /nope"):
        assert words in result.stderr


def test_too_long(invoke: Callable[..., Any]) -> None:
    result = invoke("chat", input="x" * 600 + "\nhi\n")
    assert "/reset" in result.stderr
    assert result.stdout == "[0]user: hi\n\n"


def test_a_model_without_template(invoke: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ByteTokenizer, "has_chat_template", False)
    result = invoke("chat", input="hi\n")
    assert result.exit_code == 1
    assert "no chat template" in result.stderr
    assert invoke("generate", "hi").stdout == "[0]hi\n"


def test_ctrl_c_stops_the_answer_only(spawn: Callable[..., subprocess.Popen[str]]) -> None:
    process = spawn("--step-s", "0.05", "chat")
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("x" * 100 + "\n")
    process.stdin.flush()
    assert process.stdout.read(12) == "[0]user: xxx"
    process.send_signal(signal.SIGINT)
    process.stdin.write("/reset\ny\n")
    stdout, stderr = process.communicate(timeout=20)
    assert process.returncode == 0
    assert stdout.endswith("[0]user: y\n\n")
    assert " [stopped]" in stderr


def test_ctrl_c_at_the_prompt(spawn: Callable[..., subprocess.Popen[str]]) -> None:
    """In a terminal: Ctrl-C at the prompt stays, Ctrl-D leaves."""
    ours, theirs = pty.openpty()
    process = spawn("chat", stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True)
    os.close(theirs)

    seen = bytearray()

    def until(words: bytes, nudge: Callable[[], None] = lambda: None) -> None:
        """Read up to `words`; `nudge` now and then: a signal just before the prompt's own wait is seen only later."""
        while words not in seen:
            while not select.select([ours], [], [], 0.5)[0]:
                nudge()
            seen.extend(os.read(ours, 1000))
        del seen[: seen.index(words) + len(words)]

    until(b"> ")
    until(b"/exit leaves", lambda: process.send_signal(signal.SIGINT))
    until(b"> ")
    os.write(ours, b"hi\n")
    until(b"[0]user: hi")
    until(b"> ")
    os.write(ours, b"\x04")
    assert process.wait(10) == 0
    os.close(ours)
