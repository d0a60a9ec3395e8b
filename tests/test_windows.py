"""Layers with a sliding window, in an engine: a long sequence holds a window of them, and no bit is different."""

from __future__ import annotations

import threading
import time
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from families.tiny_families import CONFIGS, as_gguf
from pagoda.engine import iterate, validate
from pagoda.llm import Opened
from pagoda.plan import most_pages
from pagoda.types import CacheCause, SamplingParams, TokenEvent
from tiny_engine import answers, opened

WINDOW, CHUNK, SIZE = 16, 16, 4
SYSTEM = tuple(3 + (i * i) % 200 for i in range(150))
PROMPTS = [(*SYSTEM[:n], 20 + i, 30 + n) for i, n in enumerate((150, 150, 90, 150, 17, 90))]
FAMILIES = ("gemma3", "gemma2", "mistral", "gpt-oss")
NAMES = count()


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("windows")
    for name in FAMILIES:
        file = as_gguf(CONFIGS[name] | {"max_position_embeddings": 512}, lambda _: "q8_0")
        (folder / f"{name}.gguf").write_bytes(file.bytes())
    return {name: str(folder / f"{name}.gguf") for name in FAMILIES}


def tiny(path: str, **options: Any) -> Any:
    return opened(path, **{"page_size": SIZE, "chunk": CHUNK, "kv_memory": 2**21} | options)


@pytest.fixture(scope="module")
def plain(paths: dict[str, str]) -> dict[str, list[Any]]:
    """Whole prompts in one step, without the cache, one after another: a whole table of a window's pages each."""
    told = {}
    for name, path in paths.items():
        with tiny(path, prefix_cache=False, chunk=512) as made:
            told[name] = answers(made, PROMPTS)[0]
    return told


def held(made: Opened) -> list[int]:
    """Pages in use, by KV group."""
    return [sum(letter in "us" for letter in each) for each in made.engine.cache_report().maps]


@pytest.mark.parametrize("prefixes", [True, False])
@pytest.mark.parametrize("name", FAMILIES)
def test_a_long_sequence_holds_a_window(paths: dict[str, str], name: str, prefixes: bool) -> None:
    with tiny(paths[name], prefix_cache=prefixes) as made:
        capacity = made.engine.capacity
        assert capacity.windows == (None, WINDOW)
        prompt = [3 + (7 * i) % 250 for i in range(300)]
        params = SamplingParams(max_tokens=60, temperature=0, ignore_eos=True)
        request = validate(prompt, params, capacity, request_id="long", arrival=time.monotonic())
        most, over = [0, 0], threading.Event()

        def sink(event: TokenEvent) -> None:
            """On the engine's thread, so that what is held cannot be gone by now."""
            most[:] = map(max, most, held(made))
            if event.finish is not None:
                over.set()

        made.engine.submit(request, sink)
        assert over.wait(60)
    assert 300 // SIZE <= most[0] <= 360 // SIZE
    assert 1 < most[1] <= most_pages(WINDOW, 360, CHUNK, SIZE) < 300 // SIZE // 4


@pytest.mark.parametrize(
    "options",
    [
        {"kv_memory": 2**24},
        {"kv_memory": 2**19},
        {"page_size": 1, "chunk": 5},
        {"page_size": 32},
        {"max_num_seqs": 1},
        {"speculate": "self:1"},
        {"speculate": "ngram", "chunk": 40},
        {"prefix_cache": False},
        {"prefix_cache": False, "max_num_seqs": 1},
    ],
    ids=str,
)
@pytest.mark.parametrize("name", FAMILIES)
def test_nothing_is_different(
    paths: dict[str, str], plain: dict[str, list[Any]], name: str, options: dict[str, Any]
) -> None:
    """Cold, met again, and all at once, with few pages or many; also of choices that can no longer be forked."""
    with tiny(paths[name], **options) as made:
        for together in (False, False, True):
            assert answers(made, PROMPTS, together)[0] == plain[name]
        if options.get("kv_memory") == 2**24:  # windows for all of them
            assert answers(made, PROMPTS)[1] == [len(prompt) - 1 for prompt in PROMPTS] * 2, (
                "a repeat finds all but a token"
            )


@pytest.mark.parametrize("name", FAMILIES)
def test_a_restart_is_warm(paths: dict[str, str], plain: dict[str, list[Any]], name: str, tmp_path: Path) -> None:
    """Long prompts of which memory kept only windows are on disk whole."""
    options = {"kv_dir": str(tmp_path / "kv"), "max_num_seqs": 1, "max_model_len": 192}
    with tiny(paths[name], **options) as made:
        assert made.engine.capacity.pages[1] < 2 * 160 // SIZE, "or nothing would have to go"
        assert answers(made, PROMPTS)[0] == plain[name]
    with tiny(paths[name], **options) as made:
        told, found = answers(made, PROMPTS)
        report = made.engine.disk_report()
    assert told == plain[name]
    assert found[0] >= 150 // SIZE * SIZE
    assert report is not None
    assert report.restored >= found[0] // SIZE
    assert report.faults == ()


@pytest.mark.parametrize("name", FAMILIES)
def test_a_pin_holds_its_windows(paths: dict[str, str], plain: dict[str, list[Any]], name: str) -> None:
    """A pin has all pages of its first group, and of windows those before its end: it is found whatever else goes."""
    with tiny(paths[name], max_num_seqs=2, max_model_len=192, kv_memory=2**18) as made:
        pin = made.engine.pin(SYSTEM, "someone").result(20)
        assert pin.pages == 38 + most_pages(WINDOW, len(SYSTEM), 1, SIZE)
        for _ in range(2):
            told, found = answers(made, PROMPTS)
            assert told == plain[name]
            assert found[0] == found[1] == found[3] == len(SYSTEM)
        letters = [each.count("p") for each in made.engine.cache_report().maps]
        assert letters == [38, most_pages(WINDOW, len(SYSTEM), 1, SIZE)]
        assert made.engine.unpin(pin.id)
        assert answers(made, PROMPTS)[0] == plain[name]


def test_windows_that_are_gone_are_said_to_be(paths: dict[str, str]) -> None:
    """What a prefix once had in its windows went for others: it is found as far as windows are kept, and no further."""
    with tiny(paths["gemma3"], max_num_seqs=1, max_model_len=192) as made:
        few = made.engine.capacity.pages[1]
        params = SamplingParams(max_tokens=1, temperature=0)
        for first in (5, 6):
            request = validate([first, *SYSTEM], params, made.engine.capacity, request_id=f"{first}", arrival=0.0)
            list(iterate(made.engine, [request]))
        assert few < 2 * 150 // SIZE
        again = validate([5, *SYSTEM[:40], 9], params, made.engine.capacity, request_id="again", arrival=0.0)
        (last,) = (event for event in iterate(made.engine, [again]) if event.finish is not None)
    assert last.cache is not None
    assert last.cache.cause is CacheCause.EVICTED
    assert last.cached_tokens < 40
