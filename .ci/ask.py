"""Starts `pagoda serve`, asks one streamed question over HTTP, and stops it with SIGINT.

    python .ci/ask.py COMMAND...

Fails unless the ready line comes, the answer streams as text and ends in [DONE], and the exit code is 0.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
import urllib.request

READY_S = 600.0
"""The first start may fetch the model."""
ANSWER_S = 120.0
STOP_S = 30.0


def wait_ready(server: subprocess.Popen[str]) -> str:
    """The URL in the ready line; whatever else the server prints is passed on."""
    watchdog = threading.Timer(READY_S, server.kill)
    watchdog.start()
    assert server.stdout is not None
    try:
        for line in server.stdout:
            print(f"  | {line}", end="", flush=True)
            if line.startswith("ready http"):
                return line.split()[1]
    finally:
        watchdog.cancel()
    raise SystemExit(f"the server ended with {server.wait()} before it was ready (limit {READY_S:.0f} s)")


def ask(url: str) -> tuple[str, int]:
    """The streamed answer, and how many chunks had text."""
    with urllib.request.urlopen(f"{url}/v1/models", timeout=ANSWER_S) as response:
        model = json.load(response)["data"][0]["id"]
    body = {
        "model": model,
        "messages": [{"role": "user", "content": "Name three colours."}],
        "max_tokens": 24,
        "temperature": 0,
        "stream": True,
    }
    request = urllib.request.Request(
        f"{url}/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    pieces: list[str] = []
    with urllib.request.urlopen(request, timeout=ANSWER_S) as response:
        events = [line[6:].strip() for line in response.read().decode().splitlines() if line.startswith("data: ")]
    if not events or events[-1] != "[DONE]":
        raise SystemExit(f"the stream did not end in [DONE]: {events[-1:]}")
    for event in events[:-1]:
        for choice in json.loads(event)["choices"]:
            if text := choice["delta"].get("content"):
                pieces.append(text)
    return "".join(pieces), len(pieces)


def main() -> None:
    """See above."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have started us with it ignored
    server = subprocess.Popen(sys.argv[1:], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
    try:
        start = time.monotonic()
        url = wait_ready(server)
        ready = time.monotonic()
        text, chunks = ask(url)
        answered = time.monotonic()
        if not text.strip() or chunks < 2:
            raise SystemExit(f"the answer did not stream: {text!r} in {chunks} chunks")
        server.send_signal(signal.SIGINT)
        code = server.wait(STOP_S)
        if code != 0:
            raise SystemExit(f"SIGINT ended the server with {code}, not 0")
    finally:
        if server.poll() is None:
            server.kill()
            server.wait()
    print(f"ready in {ready - start:.1f} s, answered in {answered - ready:.1f} s in {chunks} chunks: {text!r}")


if __name__ == "__main__":
    main()
