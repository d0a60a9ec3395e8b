"""A real (tiny) model over restarts: the same bits in every KV format; crashes at any moment; whose directory it is."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from pagoda.config import KV_FORMATS
from pagoda.engine import iterate, validate
from pagoda.errors import InvalidConfig
from pagoda.llm import LLM, Opened, engine_config, open_engine
from pagoda.types import DiskReport, FinishReason
from tiny import tiny_model
from tiny_engine import GREEDY, SAMPLED, opened

SYSTEM = tuple(3 + (i * i) % 200 for i in range(101))
PROMPTS = [(*SYSTEM[:n], 20 + i, 30 + n) for i, n in enumerate((101, 101, 80, 64, 47, 16, 3))]
NAMES = count()


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tiny_model(tmp_path_factory.mktemp("tiny"), seed=9))


def answers(made: Opened, tenant: str = "", prompts: Any = PROMPTS) -> tuple[list[Any], list[int]]:
    """What each prompt gets, bit for bit, and how much of it was found."""
    told: dict[tuple[str, int], list[Any]] = {}
    found = []
    for params in (GREEDY, SAMPLED):
        for prompt in prompts:
            request = validate(
                prompt, params, made.engine.capacity, request_id=f"{next(NAMES)}", arrival=time.monotonic(),
                tenant=tenant,
            )  # fmt: skip
            for event in iterate(made.engine, [request]):
                told.setdefault((event.request_id, event.index), []).append((event.token_ids, event.logprobs))
                if event.finish is not None:
                    assert event.finish is FinishReason.LENGTH, event.error
                    if event.index == 0:
                        found.append(event.cached_tokens)
    return list(told.values()), found


def report(made: Opened) -> DiskReport:
    found = made.engine.disk_report()
    assert found is not None
    return found


@pytest.mark.parametrize("page_size", [4, 16])
@pytest.mark.parametrize("kv_format", [*KV_FORMATS, "int4:1"])
def test_off_cold_warm_and_restored_are_the_same(path: str, tmp_path: Path, kv_format: str, page_size: int) -> None:
    options: dict[str, Any] = {"kv_format": kv_format, "page_size": page_size}
    with opened(path, prefix_cache=False, **options) as made:
        off, _ = answers(made)
    options["kv_dir"] = str(tmp_path / "kv")
    with opened(path, **options) as made:
        cold, found = answers(made)
        assert found[0] == 0
        assert answers(made)[0] == off, "warm"
    assert cold == off
    with opened(path, **options) as made:
        restored, found = answers(made)
        assert found[0] >= (len(PROMPTS[0]) - 1) // page_size * page_size
        assert report(made).restored >= found[0] // page_size
        assert report(made).faults == ()
    assert restored == off


def test_formats_and_page_sizes_do_not_meet(path: str, tmp_path: Path) -> None:
    """One directory, several ways to store: each finds its own, and says that the rest is foreign."""
    kv_dir = str(tmp_path / "kv")
    for kv_format, page_size in [("f16", 16), ("int8", 16), ("f16", 8)]:
        with opened(path, kv_dir=kv_dir, kv_format=kv_format, page_size=page_size) as made:
            _, found = answers(made, prompts=PROMPTS[:1])
            assert found[0] == 0
    with opened(path, kv_dir=kv_dir, kv_format="f16", page_size=16) as made:
        _, found = answers(made, prompts=PROMPTS[:1])
        assert found[0] == 96
        assert dict(report(made).faults).keys() == {"foreign"}


def test_pins_are_back_before_the_engine_is_ready(path: str, tmp_path: Path) -> None:
    kv_dir = str(tmp_path / "kv")
    with opened(path, kv_dir=kv_dir) as made:
        pin = made.engine.pin(SYSTEM, "admin", shared=True).result(20)
    with opened(path, kv_dir=kv_dir) as made:
        (again,) = made.engine.list_pins()
        assert (again.id, again.owner, again.tokens) == (pin.id, "admin", len(SYSTEM))
        assert report(made).restored == len(SYSTEM) // 16
        _, found = answers(made, "anyone", PROMPTS[:1])
        assert found[0] == len(SYSTEM)


def test_the_budget_is_kept(path: str, tmp_path: Path) -> None:
    kv_dir = tmp_path / "kv"
    with opened(path, kv_dir=str(kv_dir), kv_dir_budget=5 * 8192) as made:
        answers(made)
    files = [file.stat().st_size for file in kv_dir.glob("*.page")]
    assert files
    assert sum(-(-size // 4096) * 4096 for size in files) <= 5 * 8192


def test_one_directory_is_one_process_s(path: str, tmp_path: Path) -> None:
    refused = pytest.raises(InvalidConfig, match=rf"in use by process {os.getpid()}: give each process a directory")
    with opened(path, kv_dir=str(tmp_path / "kv")), refused:
        LLM(path, kv_dir=str(tmp_path / "kv"), threads=1)
    with pytest.raises(InvalidConfig, match="prefix_cache is off"):
        LLM(path, kv_dir=str(tmp_path / "kv"), prefix_cache=False)
    with pytest.raises(InvalidConfig, match="kv_dir_budget needs kv_dir"):
        LLM(path, kv_dir_budget=5)
    with opened(path, kv_dir=str(tmp_path / "kv")):
        pass


WRITER = """
import sys
from pagoda.llm import LLM, SamplingParams
with LLM(sys.argv[1], kv_dir=sys.argv[2], threads=1, kv_memory=2**17) as llm:
    print("ready", flush=True)
    i = 0
    while True:
        i += 1
        prompt = [3 + i % 250, 3 + i // 250 % 250, *(3 + (j * j) % 200 for j in range(90))]
        for _ in range(2):
            llm.generate([prompt], SamplingParams(max_tokens=2, temperature=0))
"""


@pytest.mark.parametrize("after_s", [0.05, 0.2, 0.5])
def test_a_process_killed_while_it_writes_leaves_only_whole_pages(path: str, tmp_path: Path, after_s: float) -> None:
    kv_dir = tmp_path / "kv"
    process = subprocess.Popen([sys.executable, "-c", WRITER, path, str(kv_dir)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    while not list(kv_dir.glob("*.page")):
        time.sleep(0.01)
    time.sleep(after_s)
    process.send_signal(signal.SIGKILL)
    process.wait(20)
    process.stdout.close()
    written = len(list(kv_dir.glob("*.page")))
    with opened(path, kv_dir=str(kv_dir)) as made:
        assert report(made).units == written > 0
        assert report(made).faults == ()
        assert not list(kv_dir.glob("*.tmp"))
        with opened(path, prefix_cache=False) as plain:
            prompts = [[3 + i, 3, *(3 + (j * j) % 200 for j in range(90))] for i in range(1, 9)]
            assert answers(made, prompts=prompts)[0] == answers(plain, prompts=prompts)[0]
        assert report(made).restored > 0
        assert report(made).faults == ()


@pytest.mark.parametrize("with_work", [False, True])
def test_closing_twice_is_closing_once(path: str, tmp_path: Path, with_work: bool) -> None:
    """A server closes its engine when it stops, and once more on the way out."""
    made = open_engine(engine_config(path, threads=1, kv_memory=2**19, kv_dir=str(tmp_path / "kv")))
    if with_work:
        answers(made, prompts=PROMPTS[:1])
    made.engine.close()
    made.close()
    assert bool(list((tmp_path / "kv").glob("*.page"))) == with_work
    with opened(path, kv_dir=str(tmp_path / "kv")) as again:
        assert again.engine.health().alive


def test_a_server_with_a_tier_stops_in_order(path: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pagoda", "serve", path, "--port", "0", "--threads", "1", "--kv-memory", "1M"]
    command += ["--kv-dir", str(tmp_path / "kv"), "--kv-dir-budget", "1M"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline().startswith("ready ")
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    assert "Traceback" not in errors
