"""Progress bars on stderr: of a model that is fetched or written, and of work whose amount is known."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from types import TracebackType

    from rich.progress import Progress as Bars


class _Bar(ABC):
    """A bar that appears with the first news: what is done at once costs no line and no import."""

    def __init__(self, label: str) -> None:
        self._label = label
        self._bars: Bars | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bars is not None:
            self._bars.stop()

    @abstractmethod
    def _make(self) -> Bars:
        """What is drawn."""

    def __call__(self, done: int, total: int) -> None:
        """`done` of `total` is done, in any unit."""
        if self._bars is None:
            self._bars = self._make()
            self._bars.add_task(self._label, total=total)
            self._bars.start()
        self._bars.update(self._bars.task_ids[0], completed=done, total=total)


class DownloadBar(_Bar):
    """A `catalog.Progress`, in bytes.

    with DownloadBar("smollm2") as bar:
        resolve("smollm2", progress=bar)
    """

    def __init__(self, label: str, verb: str = "fetching") -> None:
        super().__init__(label)
        self._verb = verb

    def say(self, text: str) -> None:
        """A line above the bar."""
        if self._bars is None:
            print(text, file=sys.stderr)
        else:
            self._bars.console.print(text, markup=False, highlight=False)

    def _make(self) -> Bars:
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            DownloadColumn,
            Progress,
            TextColumn,
            TimeRemainingColumn,
            TransferSpeedColumn,
        )

        columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
        return Progress(TextColumn(f"{self._verb} {{task.description}}"), *columns, console=Console(stderr=True))


class WorkBar(_Bar):
    """Of work whose amount is known, with the time that is left; gone when it is done.

    with WorkBar("measuring") as bar:
        bar(done, total)
    """

    def _make(self) -> Bars:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

        columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
        return Progress(*columns, console=Console(stderr=True), transient=True)
