"""Workloads: who asks for how much, and when. Seeded, so that two runs ask the same.

Knows times, lengths and which prompts begin alike; no tokens, no text, no server. A prompt is a list of runs: equal
runs at the beginning of two prompts are equal tokens.
"""

from __future__ import annotations

import csv
import json
import math
import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

from pagoda.errors import InvalidConfig

Run = tuple[str, int]
"""A name and a length in tokens: what has the same name has the same tokens, as far as the shorter goes."""
MOONCAKE_BLOCK = 512
"""Tokens of a block of Mooncake's traces."""


@dataclass(frozen=True, slots=True)
class Ask:
    """One request."""

    at: float
    """Seconds after the beginning; with a fixed concurrency it is not looked at."""
    prompt: tuple[Run, ...]
    output: int
    """Tokens of the answer."""
    key: str = ""
    """Whose it is."""
    turns: int = 1
    """How often a conversation goes on: each turn's prompt is the one before, its answer, and the first run again."""

    @property
    def tokens(self) -> int:
        """Of the prompt."""
        return sum(length for _, length in self.prompt)


@dataclass(frozen=True, slots=True)
class Shape:
    """How long the requests of a made-up workload are, in tokens."""

    prompt: tuple[int, int] = (32, 256)
    """Least and most; any length between them is as likely."""
    output: tuple[int, int] = (32, 32)
    shared: int = 0
    """Tokens that all prompts begin with, besides their own."""
    turns: int = 1


def closed(count: int, shape: Shape, seed: int = 0) -> list[Ask]:
    """Requests without times, for a fixed number at once."""
    return list(_asks((0.0 for _ in range(count)), shape, random.Random(seed)))


def poisson(rate: float, seconds: float, shape: Shape, seed: int = 0) -> list[Ask]:
    """Arrivals that know nothing of each other, `rate` a second."""
    draw = random.Random(seed)

    def times() -> Iterator[float]:
        now = draw.expovariate(rate)
        while now < seconds:
            yield now
            now += draw.expovariate(rate)

    return list(_asks(times(), shape, random.Random(seed + 1)))


def bursts(size: int, every: float, count: int, shape: Shape, seed: int = 0) -> list[Ask]:
    """`size` requests at once, `every` so many seconds, `count` times."""
    return list(_asks((every * (i // size) for i in range(size * count)), shape, random.Random(seed)))


def merged(*loads: Iterable[Ask]) -> list[Ask]:
    """Several loads as one, in order of time."""
    return sorted((ask for load in loads for ask in load), key=lambda ask: ask.at)


def _asks(times: Iterable[float], shape: Shape, draw: random.Random) -> Iterator[Ask]:
    salt = draw.getrandbits(32)
    for number, at in enumerate(times):
        own: Run = (f"{salt:x}-{number}", draw.randint(*shape.prompt))
        runs = ((f"{salt:x}", shape.shared), own) if shape.shared else (own,)
        yield Ask(at, runs, draw.randint(*shape.output), "", shape.turns)


def read_trace(path: Path, *, lengths: float = 1.0, speed: float = 1.0, longest: int = 10**9) -> list[Ask]:
    """A trace file: Mooncake's JSONL, with which prompts share blocks of 512 tokens, or CSV.

    A CSV has three columns: arrival (seconds, or a date and time), prompt tokens, output tokens; a head line may name
    them. Times count from the first line.

    Args:
        path: of the file; `.jsonl` is Mooncake's.
        lengths: by which prompts and outputs are multiplied.
        speed: by which arrivals are quickened.
        longest: tokens that prompt and output may come to: outputs, then prompts, are cut to it.

    Raises:
        InvalidConfig: a line that is none.
    """
    try:
        with path.open() as lines:
            asks = list((_mooncake if path.suffix == ".jsonl" else _csv)(lines))
    except (OSError, ValueError, KeyError, IndexError, TypeError) as error:
        raise InvalidConfig(f"{path} is not a trace: {type(error).__name__}: {error}") from None
    first = min((ask.at for ask in asks), default=0.0)
    return sorted(
        (_scaled(replace(ask, at=(ask.at - first) / speed), lengths, longest) for ask in asks), key=lambda ask: ask.at
    )


def _mooncake(lines: Iterable[str]) -> Iterator[Ask]:
    for line in filter(str.strip, lines):
        row = json.loads(line)
        left, runs = int(row["input_length"]), []
        for block in row["hash_ids"]:
            size = min(MOONCAKE_BLOCK, left)
            left -= size
            if size > 0:
                runs.append((f"block-{block}", size))
        yield Ask(row["timestamp"] / 1000, tuple(runs), max(1, int(row["output_length"])))


def _csv(lines: Iterable[str]) -> Iterator[Ask]:
    for number, row in enumerate(csv.reader(lines)):
        if number or row[1].strip().isdecimal():
            yield Ask(_seconds(row[0]), ((f"line-{number}", max(1, int(row[1]))),), max(1, int(row[2])))


def _seconds(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return datetime.fromisoformat(text[:26]).timestamp()  # of seven decimals Python reads six


def _scaled(ask: Ask, factor: float, longest: int) -> Ask:
    scale: Callable[[int], int] = lambda tokens: max(1, math.ceil(tokens * factor))  # noqa: E731
    left, runs = longest - 1, []
    for name, length in ask.prompt:
        size = min(scale(length), left)
        left -= size
        if size > 0:
            runs.append((name, size))
    return replace(ask, prompt=tuple(runs), output=min(scale(ask.output), left + 1))
