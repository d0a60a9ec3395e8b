"""`Shelf`: pages on their way to the disk and back, on two threads of its own, so that no step waits for a disk.

By ticket: the engine's thread announces a page (`reserve`, `fetch`), the runner brings or takes its bytes (`put`,
`take`), and what came of it is `news`. Knows files and bytes; decides nothing.
"""

from __future__ import annotations

import errno
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import Enum, auto

from pagoda.cache.kv_dir import KVDir
from pagoda.cache.page_file import HEAD, MAC, PageFault, PageId, Seal
from pagoda.types import DiskFault

PAGE, PIN = ".page", ".pin"
QUEUE = 64 * 2**20
"""Bytes of pages that may wait to be written, or wait to be taken after they were read; at least one page."""
RETRY_S = 60.0
"""How long nothing is written after the disk was full or refused."""
FULL = {errno.ENOSPC, errno.EDQUOT}
_log = logging.getLogger(__name__)


class Kind(Enum):
    """What news tell of."""

    WRITTEN = auto()
    UNWRITTEN = auto()
    READ = auto()
    UNREAD = auto()
    COPIED = auto()


@dataclass(frozen=True, slots=True)
class News:
    """What came of a ticket."""

    kind: Kind
    ticket: int
    fault: DiskFault | None = None
    """Why not; None for a page that was only given up."""
    seconds: float = 0.0
    units: int = 1


class Shelf:
    """Safe to use from any thread; no method waits for the disk but `close`, `work` and `wait_for_room`.

    Args:
        directory: is the shelf's from now on.
        seal: of the pages of this engine.
        unit_bytes: of each page's payload.
        wake: called after there is news, on a thread of the shelf's.
    """

    def __init__(self, directory: KVDir, seal: Seal, unit_bytes: int, queue_bytes: int = QUEUE) -> None:
        self.directory = directory
        self.seal = seal
        self.unit_bytes = unit_bytes
        self.wake: Callable[[], None] = lambda: None
        self._most = max(1, queue_bytes // max(unit_bytes, 1))
        self._changed = threading.Condition()
        self._promised: dict[int, PageId] = {}
        """Announced, and their bytes not yet there."""
        self._writes: deque[Callable[[], News | None]] = deque()
        self._outgoing = 0
        """Pages announced and not yet written or given up."""
        self._reads: deque[tuple[int, PageId]] = deque()
        self._arrived: dict[int, memoryview] = {}
        self._unwanted: set[int] = set()
        self._news: list[News] = []
        self._refused_at: float | None = None
        self._closing = self._closed = False
        self._threads = [
            threading.Thread(target=self._run, args=work, name=name, daemon=True)
            for work, name in (
                ((self._write_one, lambda: self._writes), "pagoda-kv-write"),
                ((self._read_one, lambda: self._reads and len(self._arrived) < self._most), "pagoda-kv-read"),
            )
        ]

    def start(self) -> None:
        """Begin to work."""
        for thread in self._threads:
            thread.start()

    # On the engine's thread.

    @property
    def writing(self) -> bool:
        """Whether the disk takes pages, as far as is known."""
        return self._refused_at is None or time.monotonic() >= self._refused_at + RETRY_S

    @property
    def room(self) -> bool:
        """Whether one more page may be announced."""
        return self._outgoing < self._most and self.writing

    def reserve(self, ticket: int, page: PageId) -> None:
        """A page will be `put`. There must be room."""
        with self._changed:
            self._promised[ticket] = page
            self._outgoing += 1

    def put(self, ticket: int, data: memoryview) -> None:
        """Its bytes: they are written when the disk gets round to it."""
        with self._changed:
            page = self._promised.pop(ticket)
            self._writes.append(lambda: self._write_page(ticket, page, data))
            self._changed.notify_all()

    def fetch(self, ticket: int, page: PageId) -> None:
        """Read a page; then `take` it. Pages come in the order of these calls."""
        with self._changed:
            self._reads.append((ticket, page))
            self._changed.notify_all()

    def take(self, ticket: int) -> memoryview:
        """The bytes of a page that was read."""
        with self._changed:
            data = self._arrived.pop(ticket)
            self._changed.notify_all()
            return data

    def forget(self, ticket: int) -> None:
        """A page that was to be read is not wanted any more, read or not."""
        with self._changed:
            if self._arrived.pop(ticket, None) is None:
                self._unwanted.add(ticket)
            self._changed.notify_all()

    def loaded(self, units: int, seconds: float) -> None:
        """So many pages were copied into place, in so many seconds."""
        self._tell(News(Kind.COPIED, -1, None, seconds, units))

    def remove(self, names: Sequence[str]) -> None:
        """Delete files, after what was put before is written."""
        if names:
            self._later(self.directory.remove, names)

    def touch(self, names: Sequence[str]) -> None:
        """The files of a prefix were used; of its pages the first one last, so that it is the last to go."""
        if names:
            self._later(self.directory.touch, names[::-1])

    def file_bytes(self, page: PageId) -> int:
        """How long a page's file is."""
        return len(self.seal.header(page, self.unit_bytes)) + self.unit_bytes + MAC

    def write_pin(self, pin: PageId, more: bytes) -> None:
        """Keep a pin's record: its tokens, its owner as tenant, its number as start, and some bytes more."""

        def write() -> News | None:
            header = self.seal.header(pin, len(more))
            parts: list[bytes | memoryview] = [header, more, self.seal.footer(header, more)]
            fault = self._guarded(lambda: self.directory.write(pin.name.hex() + PIN, parts))
            return None if fault is None else News(Kind.UNWRITTEN, -1, fault)

        with self._changed:
            self._writes.append(write)
            self._changed.notify_all()

    def news(self) -> list[News]:
        """What happened since the last call."""
        with self._changed:
            news, self._news = self._news, []
            return news

    @property
    def has_news(self) -> bool:
        """Whether something did."""
        return bool(self._news)

    def read_header(self, name: str) -> tuple[PageId, int]:
        """What a file says that it is, and the bytes of its payload; it is as long as it says.

        Raises:
            PageFault: it cannot be used.
        """
        with _faults(), self.directory.opened(name) as (fd, size):
            _, page, payload = self._header(fd, size)
            return page, payload

    def read_pin(self, name: str) -> tuple[PageId, bytes]:
        """A pin's record, verified.

        Raises:
            PageFault: it cannot be used.
        """
        with _faults(), self.directory.opened(name) as (fd, size):
            header, pin, payload = self._header(fd, size)
            return pin, bytes(self._payload(fd, header, payload))

    def wait_for_room(self, seconds: float) -> bool:
        """Wait for the writer, for at most so long; whether there is room."""
        with self._changed:
            return self._changed.wait_for(lambda: self.room or not self.writing, seconds) and self.room

    def work(self) -> None:
        """Do what the threads would do, here and now, until nothing is left that can be done: for tests."""
        while self._write_one() or self._read_one():
            pass

    def close(self, seconds: float = 0.0) -> None:
        """Write what was put, for at most so many seconds; give up the rest and the directory. Once."""
        until = time.monotonic() + seconds
        with self._changed:
            if self._closed:
                return
            self._closed = True
            self._changed.wait_for(lambda: not self._writes or not self.writing or not self._threads[0].ident, seconds)
            self._closing = True
            self._reads.clear()
            self._writes.clear()
            self._changed.notify_all()
        for thread in self._threads:
            if thread.ident is not None:
                thread.join(max(0.0, until - time.monotonic()) + 1.0)
        if not any(
            thread.is_alive() for thread in self._threads
        ):  # one that hangs on the disk still has its descriptor
            with suppress(OSError):
                self.directory.sync()
            self.directory.close()

    # On its own threads.

    def _run(self, step: Callable[[], bool], due: Callable[[], object]) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: due() or self._closing)
                if not due():
                    return
            step()

    def _write_one(self) -> bool:
        """One thing that waits to be written; False if there is none."""
        with self._changed:
            if not self._writes:
                return False
            job = self._writes[0]
        news = job()
        with self._changed:
            if self._writes:
                self._writes.popleft()
            last = not self._writes
            self._changed.notify_all()
        if last:
            with suppress(OSError):
                self.directory.sync()
        if news is not None:
            self._tell(news)
        return True

    def _write_page(self, ticket: int, page: PageId, data: memoryview) -> News:
        fault: DiskFault | None = None
        written = False
        if self.writing:
            header = self.seal.header(page, data.nbytes)
            parts: list[bytes | memoryview] = [header, data, self.seal.footer(header, data)]
            fault = self._guarded(lambda: self.directory.write(page.name.hex() + PAGE, parts))
            written = fault is None
        with self._changed:
            self._outgoing -= 1
        return News(Kind.WRITTEN if written else Kind.UNWRITTEN, ticket, fault)

    def _guarded(self, write: Callable[[], None]) -> DiskFault | None:
        """Write; after a fault nothing is written for a while."""
        try:
            write()
        except OSError as error:
            if self.writing:
                _log.error(
                    "kv_dir %s: %s; nothing is written for %g s", self.directory.path, error.strerror or error, RETRY_S
                )
            self._refused_at = time.monotonic()
            return DiskFault.DISK_FULL if error.errno in FULL else DiskFault.WRITE_ERROR
        self._refused_at = None
        return None

    def _read_one(self) -> bool:
        """One page; False if there is none to be read, or those read before were not taken."""
        with self._changed:
            if not self._reads or len(self._arrived) >= self._most:
                return False
            ticket, page = self._reads.popleft()
            if ticket in self._unwanted:
                self._unwanted.remove(ticket)
                return True
        began = time.monotonic()
        try:
            data = self._read_page(page)
        except PageFault as fault:
            _log.warning("kv_dir %s: %s%s %s: not used", self.directory.path, page.name.hex(), PAGE, fault)
            self._tell(News(Kind.UNREAD, ticket, fault.fault))
            return True
        with self._changed:
            if ticket in self._unwanted:
                self._unwanted.remove(ticket)
                return True
            self._arrived[ticket] = data
        self._tell(News(Kind.READ, ticket, None, time.monotonic() - began))
        return True

    def _read_page(self, page: PageId) -> memoryview:
        """A page's payload, after all of the file was verified.

        Raises:
            PageFault: it cannot be used.
        """
        with _faults(), self.directory.opened(page.name.hex() + PAGE) as (fd, size):
            header, found, payload = self._header(fd, size)
            if found != page or payload != self.unit_bytes:
                raise PageFault(DiskFault.FOREIGN, "holds another page than its name says")
            return self._payload(fd, header, payload)

    def _payload(self, fd: int, header: bytes, payload: int) -> memoryview:
        view = memoryview(bytearray(payload + MAC))
        _fill(fd, view, len(header))
        self.seal.check_payload(header, view[:payload], bytes(view[payload:]))
        return view[:payload]

    def _header(self, fd: int, size: int) -> tuple[bytes, PageId, int]:
        length = self.seal.length(os.pread(fd, HEAD, 0))
        header = os.pread(fd, length, 0)
        page, payload = self.seal.parse(header)
        if size < length + payload + MAC:
            raise PageFault(DiskFault.TRUNCATED, f"has {size} bytes of {length + payload + MAC}")
        return header, page, payload

    def _later(self, job: Callable[[str], None], names: Sequence[str]) -> None:
        def each() -> None:
            for name in names:
                with suppress(OSError):
                    job(name)

        with self._changed:
            self._writes.append(each)
            self._changed.notify_all()

    def _tell(self, news: News) -> None:
        with self._changed:
            self._news.append(news)
        self.wake()


@contextmanager
def _faults() -> Iterator[None]:
    """What the system says of a file, as a `PageFault`."""
    try:
        yield
    except FileNotFoundError as error:
        raise PageFault(DiskFault.MISSING, "is gone") from error
    except OSError as error:
        raise PageFault(DiskFault.READ_ERROR, f"cannot be read: {error.strerror or error}") from error


def _fill(fd: int, view: memoryview, at: int) -> None:
    """Read so many bytes from there."""
    done = 0
    while done < len(view):
        count = os.preadv(fd, [view[done:]], at + done)
        if not count:
            raise PageFault(DiskFault.TRUNCATED, "ends early")
        done += count
