"""The tier's directory and files: modes, lock, key, atomicity, and that no meddled file is ever read as a page."""

from __future__ import annotations

import errno
import multiprocessing
import os
import stat
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pagoda.cache.kv_dir import KVDir
from pagoda.cache.page_file import PageFault, PageId, Seal
from pagoda.cache.shelf import PAGE, Kind, Shelf
from pagoda.errors import InvalidConfig
from pagoda.types import DiskFault

UNIT = 300
TOKENS = (7, 8, 9, 2**32 - 1)
SECRET = "tenant-with-a-telling-name"


def page_of(seal: Seal, tenant=SECRET, tokens=TOKENS) -> PageId:
    root = seal.root(tenant)
    return PageId(seal.name(root, tokens), root, tenant, 0, tokens)


@pytest.fixture
def shelf(tmp_path):
    directory = KVDir(tmp_path / "kv")
    yield Shelf(directory, Seal(directory.key, "here"), UNIT, 4 * UNIT)
    directory.close()


def write(shelf: Shelf, page: PageId, data=b"x" * UNIT) -> Path:
    shelf.reserve(1, page)
    shelf.put(1, memoryview(data))
    shelf.work()
    assert [news.kind for news in shelf.news()] == [Kind.WRITTEN]
    return shelf.directory.path / (page.name.hex() + PAGE)


def read(shelf: Shelf, page: PageId) -> bytes | DiskFault:
    shelf.fetch(2, page)
    shelf.work()
    (news,) = shelf.news()
    return bytes(shelf.take(2)) if news.fault is None else news.fault


def test_nobody_else_can_read_anything(shelf):
    """KV is what users wrote, as good as in clear."""
    old = os.umask(0)
    try:
        path = write(shelf, page_of(shelf.seal))
    finally:
        os.umask(old)
    assert stat.S_IMODE(os.stat(path.parent).st_mode) == 0o700
    for name in os.listdir(path.parent):
        assert stat.S_IMODE(os.stat(path.parent / name).st_mode) == 0o600, name
        assert SECRET not in name


def test_names_tell_nothing_without_the_key(shelf):
    seal, other = shelf.seal, Seal(bytes(32), "here")
    assert page_of(seal).name != page_of(other).name
    assert page_of(seal).name != page_of(seal, tenant="b").name
    assert page_of(seal).name != page_of(Seal(shelf.directory.key, "there")).name
    assert Seal(shelf.directory.key, "here").root("a") == seal.root("a")


def test_what_was_written_is_read(shelf):
    page, data = page_of(shelf.seal), bytes(range(256)) + bytes(UNIT - 256)
    write(shelf, page, data)
    assert read(shelf, page) == data


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    directory = KVDir(tmp_path_factory.mktemp("one") / "kv")
    shelf = Shelf(directory, Seal(directory.key, "here"), UNIT)
    page = page_of(shelf.seal)
    yield shelf, page, write(shelf, page)
    directory.close()


@settings(deadline=None)
@given(data=st.data())
def test_no_bit_can_be_changed_and_no_byte_be_missing(written, data):
    shelf, page, path = written
    sound = path.read_bytes()
    at = data.draw(st.integers(0, len(sound) - 1))
    if data.draw(st.booleans()):
        broken = sound[:at]
    else:
        broken = sound[:at] + bytes([sound[at] ^ data.draw(st.integers(1, 255))]) + sound[at + 1 :]
    path.write_bytes(broken)
    try:
        assert read(shelf, page) in {DiskFault.DAMAGED, DiskFault.TRUNCATED, DiskFault.FOREIGN, DiskFault.WRONG_KEY}
    finally:
        path.write_bytes(sound)
    assert read(shelf, page) == b"x" * UNIT


def test_each_fault_has_its_name(shelf):
    page = page_of(shelf.seal)
    assert read(shelf, page) is DiskFault.MISSING
    path = write(shelf, page)
    sound = path.read_bytes()

    def seal_of(key=shelf.directory.key, identity="here"):
        header = (seal := Seal(key, identity)).header(page, UNIT)
        return header + b"x" * UNIT + seal.footer(header, b"x" * UNIT)

    assert seal_of() == sound
    for broken, fault in [
        (seal_of(key=bytes(32)), DiskFault.WRONG_KEY),
        (seal_of(identity="other weights"), DiskFault.FOREIGN),
        (b"GGUF" + sound[4:], DiskFault.FOREIGN),
        (sound[:-1], DiskFault.TRUNCATED),
        (b"", DiskFault.TRUNCATED),
        (sound[:-1] + bytes([sound[-1] ^ 1]), DiskFault.DAMAGED),
    ]:
        path.write_bytes(broken)
        assert read(shelf, page) is fault
    path.unlink()
    path.mkdir()
    assert read(shelf, page) is DiskFault.READ_ERROR


def test_a_sound_file_under_another_name_is_not_that_page(shelf):
    """Another tenant's page, a whole and true file, copied over this one's."""
    mine, theirs = page_of(shelf.seal, "a"), page_of(shelf.seal, "b")
    write(shelf, mine)
    path = write(shelf, theirs, b"y" * UNIT)
    (path.parent / (mine.name.hex() + PAGE)).write_bytes(path.read_bytes())
    assert read(shelf, mine) is DiskFault.FOREIGN


def test_a_link_is_not_followed(shelf, tmp_path):
    page = page_of(shelf.seal)
    path = write(shelf, page)
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    assert read(shelf, page) is DiskFault.READ_ERROR
    assert shelf.directory.files(PAGE) == []


@pytest.mark.parametrize("mode", [0o755, 0o750, 0o701, 0o777])
def test_a_directory_that_others_can_reach_is_refused_if_something_is_in_it(tmp_path, mode):
    path = tmp_path / "kv"
    path.mkdir()
    path.chmod(mode)
    KVDir(path).close()
    assert stat.S_IMODE(path.stat().st_mode) == 0o700, "an empty one is made right"
    path.chmod(mode)
    with pytest.raises(InvalidConfig, match=rf"mode {mode:04o}.*chmod 700"):
        KVDir(path)


def test_a_key_that_others_may_know_is_refused(tmp_path):
    KVDir(tmp_path / "kv").close()
    (tmp_path / "kv" / "key").chmod(0o640)
    with pytest.raises(InvalidConfig, match="others may know it"):
        KVDir(tmp_path / "kv")


@pytest.mark.parametrize("what", ["file", "missing parent is a file"])
def test_a_path_that_cannot_be_a_directory_is_refused(tmp_path, what):
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidConfig, match="cannot be used"):
        KVDir(tmp_path / "file" if what == "file" else tmp_path / "file" / "kv")


def test_the_key_stays_and_a_damaged_one_is_replaced(tmp_path):
    first = KVDir(tmp_path / "kv")
    assert first.new_key
    first.close()
    second = KVDir(tmp_path / "kv")
    assert (second.key, second.new_key) == (first.key, False)
    second.close()
    (tmp_path / "kv" / "key").write_bytes(b"short")
    third = KVDir(tmp_path / "kv")
    assert third.new_key
    assert third.key != first.key
    third.close()


def _hold(path, ready, go):
    directory = KVDir(path)
    ready.set()
    go.wait(20)
    directory.close()


def test_a_second_process_is_refused_and_told_which_is_the_first(tmp_path):
    context = multiprocessing.get_context("fork")
    ready, go = context.Event(), context.Event()
    process = context.Process(target=_hold, args=(tmp_path / "kv", ready, go))
    process.start()
    try:
        assert ready.wait(20)
        with pytest.raises(InvalidConfig, match=rf"in use by process {process.pid}"):
            KVDir(tmp_path / "kv")
    finally:
        go.set()
        process.join(20)
    KVDir(tmp_path / "kv").close()


def test_leftovers_of_a_crash_are_removed(tmp_path):
    KVDir(tmp_path / "kv").close()
    left = tmp_path / "kv" / f"{'ab' * 20}.page.tmp"
    left.write_bytes(b"half a page")
    KVDir(tmp_path / "kv").close()
    assert not left.exists()


def test_a_write_that_fails_leaves_nothing(tmp_path, monkeypatch):
    directory = KVDir(tmp_path / "kv")

    def full(fd, data):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(OSError, match="No space"):
        directory.write("name.page", [b"x"])
    assert sorted(os.listdir(directory.path)) == ["key", "lock"]
    directory.close()


class SlowDir(KVDir):
    """Writes when it is told to."""

    def __init__(self, path):
        self.gate, self.count = threading.Event(), 0
        super().__init__(path)

    def write(self, name, parts):
        if name.endswith(PAGE):
            assert self.gate.wait(20)
            self.count += 1
        super().write(name, parts)


def test_a_slow_disk_drops_work_and_blocks_nobody(tmp_path):
    directory = SlowDir(tmp_path / "kv")
    shelf = Shelf(directory, Seal(directory.key, "here"), UNIT, 4 * UNIT)
    shelf.start()
    began, taken = time.monotonic(), 0
    for i in range(100):
        if shelf.room:
            taken += 1
            shelf.reserve(i, page_of(shelf.seal, tokens=(i,)))
            shelf.put(i, memoryview(b"x" * UNIT))
    assert taken == 4
    assert time.monotonic() - began < 5
    directory.gate.set()
    assert shelf.wait_for_room(20)
    shelf.close(20)
    assert directory.count == 4
    assert len([name for name in os.listdir(tmp_path / "kv") if name.endswith(PAGE)]) == 4


def test_a_full_disk_is_told_once_and_nothing_is_written_for_a_while(tmp_path, caplog):
    class FullDir(KVDir):
        tries = 0

        def write(self, name, parts):
            if name.endswith(PAGE):
                self.tries += 1
                raise OSError(errno.ENOSPC, "No space left on device")
            super().write(name, parts)

    directory = FullDir(tmp_path / "kv")
    shelf = Shelf(directory, Seal(directory.key, "here"), UNIT)
    for i in range(5):
        shelf.reserve(i, page_of(shelf.seal, tokens=(i,)))
        shelf.put(i, memoryview(b"x" * UNIT))
    shelf.work()
    news = shelf.news()
    assert [n.kind for n in news] == [Kind.UNWRITTEN] * 5
    assert [n.fault for n in news] == [DiskFault.DISK_FULL] + [None] * 4
    assert not shelf.writing
    assert not shelf.room
    assert directory.tries == 1
    assert [r.levelname for r in caplog.records] == ["ERROR"]
    assert "No space left" in caplog.text
    directory.close()


def test_reading_runs_only_so_far_ahead(shelf):
    """A long prefix must not be in memory twice."""
    pages = [page_of(shelf.seal, tokens=(i,)) for i in range(9)]
    for page in pages:
        write(shelf, page)
    for i, page in enumerate(pages):
        shelf.fetch(10 + i, page)
    shelf.work()
    assert [n.ticket for n in shelf.news()] == [10, 11, 12, 13]
    shelf.forget(14)
    assert bytes(shelf.take(10)) == b"x" * UNIT
    shelf.work()
    assert [n.ticket for n in shelf.news()] == [15], "14 is not wanted any more"


def test_headers_that_lie_about_lengths_are_not_believed(shelf):
    path = write(shelf, page_of(shelf.seal))
    raw = bytearray(path.read_bytes())
    for length in (0, 1, 2**27, 2**32 - 1):
        raw[20:24] = length.to_bytes(4, "little")
        path.write_bytes(raw)
        with pytest.raises(PageFault):
            shelf.read_header(path.name)
