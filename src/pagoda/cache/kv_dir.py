"""`KVDir`: the directory of the tier: its mode, its lock, its key; files written whole or not at all, and read.

Everything goes through one descriptor of the directory, so that nothing is ever written elsewhere, whatever happens to
its path. Knows nothing of pages.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from pagoda.errors import InvalidConfig

KEY_BYTES = 32
_KEY, _LOCK, _TEMPORARY = "key", "lock", ".tmp"
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class FileInfo:
    """A file as the directory lists it."""

    name: str
    bytes: int
    written: float
    """When, in seconds since the epoch."""


class KVDir:
    """One process's directory; a second process is refused.

    Args:
        path: made if it is not there, with mode 0700.

    Raises:
        InvalidConfig: it is another process's, another user's, readable by others, or cannot be used.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._fd = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise InvalidConfig(f"kv_dir {self.path} cannot be used: {error.strerror}") from error
        self._lock = -1
        try:
            self._check_mode()
            self._take_lock()
            self.new_key = False
            """Whether there was no key: what others may have left here cannot be read."""
            self.key = self._read_key()
            self._clean()
        except OSError as error:
            self.close()
            raise InvalidConfig(f"kv_dir {self.path} cannot be used: {error}") from error
        except BaseException:
            self.close()
            raise

    def files(self, ending: str) -> list[FileInfo]:
        """Regular files whose names end so, in no order."""
        found = []
        with os.scandir(self._fd) as entries:
            for entry in entries:
                if entry.name.endswith(ending) and entry.is_file(follow_symlinks=False):
                    with suppress(FileNotFoundError):
                        info = entry.stat(follow_symlinks=False)
                        found.append(FileInfo(entry.name, info.st_size, info.st_mtime))
        return found

    @contextmanager
    def opened(self, name: str) -> Iterator[tuple[int, int]]:
        """A file's descriptor, to be read with `pread`, and its size in bytes.

        Raises:
            OSError: it is not there, not a plain file, or cannot be read.
        """
        fd = os.open(name, _READ, dir_fd=self._fd)
        try:
            info = os.fstat(fd)
            if not stat.S_ISREG(info.st_mode):
                raise OSError(f"{name} is not a plain file")
            yield fd, info.st_size
        finally:
            os.close(fd)

    def touch(self, name: str) -> None:
        """A file was used just now."""
        with suppress(OSError):
            os.utime(name, dir_fd=self._fd, follow_symlinks=False)

    def write(self, name: str, parts: Sequence[bytes | memoryview]) -> None:
        """Put a file in place, mode 0600, whole: after a crash it is there with all its bytes, or not at all.

        Raises:
            OSError: it could not be written; nothing of it is left.
        """
        temporary = name + _TEMPORARY
        with suppress(FileNotFoundError):
            os.unlink(temporary, dir_fd=self._fd)
        fd = os.open(temporary, _CREATE, 0o600, dir_fd=self._fd)
        try:
            try:
                for part in parts:
                    _write_all(fd, memoryview(part).cast("B"))
                os.fsync(fd)
            finally:
                os.close(fd)
            os.rename(temporary, name, src_dir_fd=self._fd, dst_dir_fd=self._fd)
        except OSError:
            with suppress(OSError):
                os.unlink(temporary, dir_fd=self._fd)
            raise

    def remove(self, name: str) -> None:
        """Delete a file, if it is there."""
        with suppress(FileNotFoundError):
            os.unlink(name, dir_fd=self._fd)

    def sync(self) -> None:
        """Make names last that were written or removed."""
        os.fsync(self._fd)

    def free(self) -> int:
        """Bytes that this user may still write to the file system."""
        info = os.fstatvfs(self._fd)
        return info.f_bavail * info.f_frsize

    def close(self) -> None:
        """Let others have it."""
        for fd in (self._lock, self._fd):
            if fd >= 0:
                os.close(fd)
        self._lock = self._fd = -1

    def _check_mode(self) -> None:
        info = os.fstat(self._fd)
        if info.st_uid != os.geteuid():
            raise InvalidConfig(f"kv_dir {self.path} belongs to user {info.st_uid}, and this is user {os.geteuid()}")
        mode = stat.S_IMODE(info.st_mode)
        if mode & 0o077:
            if os.listdir(self._fd):
                raise InvalidConfig(
                    f"kv_dir {self.path} has mode {mode:04o}, so others can reach what is in it: chmod 700 it, or "
                    "choose another directory"
                )
            os.fchmod(self._fd, 0o700)

    def _take_lock(self) -> None:
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        self._lock = os.open(_LOCK, flags, 0o600, dir_fd=self._fd)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            owner = os.pread(self._lock, 32, 0).decode("ascii", "replace").strip() or "unknown"
            raise InvalidConfig(
                f"kv_dir {self.path} is in use by process {owner}: give each process a directory of its own"
            ) from error
        os.ftruncate(self._lock, 0)
        os.pwrite(self._lock, f"{os.getpid()}\n".encode(), 0)

    def _read_key(self) -> bytes:
        try:
            with self.opened(_KEY) as (fd, size):
                mode = stat.S_IMODE(os.fstat(fd).st_mode)
                if mode & 0o077:
                    raise InvalidConfig(
                        f"the key in kv_dir {self.path} has mode {mode:04o}, so others may know it: empty the directory"
                    )
                if size == KEY_BYTES:
                    return os.pread(fd, KEY_BYTES, 0)
        except FileNotFoundError:
            pass
        self.new_key = True
        key = secrets.token_bytes(KEY_BYTES)
        self.write(_KEY, [key])
        self.sync()
        return key

    def _clean(self) -> None:
        """Remove what a crash left half written."""
        for info in self.files(_TEMPORARY):
            self.remove(info.name)


def _write_all(fd: int, data: memoryview) -> None:
    while data:
        data = data[os.write(fd, data) :]
