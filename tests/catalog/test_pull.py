"""Pulling: the real code against a package index on the loopback device that drops, lies, stalls and refuses."""

from __future__ import annotations

import hashlib
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from index_server import IndexServer, make_wheel, serving
from toy import FIRST, PARTS, SECOND, TOY, WHEELS, Shown, check_pulled, left

from pagoda import catalog
from pagoda.catalog import download, index
from pagoda.catalog.pull import cached_path, pull
from pagoda.errors import DownloadError

pytestmark = pytest.mark.usefixtures("surroundings")


# --- the good way


@pytest.mark.parametrize("json", [True, False])
def test_fetches_joins_and_verifies(server: IndexServer, with_pip: None, json: bool) -> None:
    server.json = json
    shown = Shown()
    path = catalog.resolve("toy", progress=shown)
    check_pulled(path)
    assert shown.news == sorted(shown.news)
    assert shown.news[-1] == (TOY.download_size, TOY.download_size)
    assert len(shown.news) > 6
    server.asked.clear()
    assert catalog.resolve("toy") == catalog.resolve("toy", offline=True) == path
    assert server.asked == []


def test_goes_on_after_dropped_connections(server: IndexServer) -> None:
    server.drops = [300_000, 0, 1]
    check_pulled(pull(TOY))
    assert server.file_requests() == [None, "bytes=300000-", "bytes=300000-", "bytes=300001-", None]


def test_goes_on_after_an_interruption(server: IndexServer) -> None:
    with pytest.raises(KeyboardInterrupt):
        pull(TOY, Shown(stop_at=250_000))
    (part,) = left()
    assert part.endswith("toy-model-part0-1.2.3.whl.part")
    size = (cached_path(TOY).parent / part).stat().st_size
    server.asked.clear()
    shown = Shown()
    check_pulled(pull(TOY, shown))
    assert server.file_requests() == [f"bytes={size}-", None]
    assert shown.news[0][0] == size


def test_keeps_whole_wheels_after_an_interruption(server: IndexServer) -> None:
    with pytest.raises(KeyboardInterrupt):
        pull(TOY, Shown(stop_at=TOY.wheels[0].size + 1))
    server.asked.clear()
    check_pulled(pull(TOY))
    assert len(server.file_requests()) == 1


def test_a_server_without_ranges(server: IndexServer) -> None:
    server.ranges = False
    server.drops = [300_000]
    check_pulled(pull(TOY))
    assert server.file_requests() == [None, "bytes=300000-", None]


def test_a_complete_part_needs_no_more_bytes(server: IndexServer) -> None:
    parts = cached_path(TOY).with_suffix(".parts")
    parts.mkdir(parents=True)
    (parts / "toy-model-part0-1.2.3.whl.part").write_bytes(WHEELS[FIRST])
    check_pulled(pull(TOY))
    assert server.file_requests() == [f"bytes={len(WHEELS[FIRST])}-", None]


@pytest.mark.parametrize("stale", [b"other bytes" * 1000, bytes(2_000_000)])
def test_a_part_of_another_file_is_fetched_anew(server: IndexServer, stale: bytes) -> None:
    parts = cached_path(TOY).with_suffix(".parts")
    parts.mkdir(parents=True)
    (parts / "toy-model-part0-1.2.3.whl.part").write_bytes(stale)
    check_pulled(pull(TOY))


def test_leftovers_of_a_killed_process_are_removed(server: IndexServer) -> None:
    parts = cached_path(TOY).with_suffix(".parts")
    (parts / "tmpabc").mkdir(parents=True)
    (parts / "tmpabc" / "half.whl").write_bytes(b"x")
    (parts / "joined").write_bytes(b"x")
    check_pulled(pull(TOY))


def test_passing_trouble_is_retried(server: IndexServer) -> None:
    server.statuses = [503, 429, 500]
    check_pulled(pull(TOY))
    assert len(server.file_requests()) == 5


def test_a_stalled_connection_is_given_up_and_gone_on(server: IndexServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index, "STALL_S", 0.3)
    server.stalls = [1.5]
    check_pulled(pull(TOY))
    first, second, third = server.file_requests()
    assert (first, third) == (None, None)
    assert second is not None
    assert 0 < int(second[len("bytes=") : -1]) < len(WHEELS[FIRST])


def test_two_at_once_fetch_once(server: IndexServer) -> None:
    server.drip = 0.02
    shown, paths = [Shown(), Shown()], []
    threads = [threading.Thread(target=lambda s=s: paths.append(pull(TOY, s))) for s in shown]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(paths) == 2
    check_pulled(paths[0])
    assert server.file_requests() == [None, None]
    assert all(len(s.news) > 1 for s in shown)  # the one that waited saw progress, too


@pytest.mark.parametrize("kind", [signal.SIGINT, signal.SIGKILL])
def test_a_stopped_process_leaves_what_can_be_gone_on_from(server: IndexServer, kind: signal.Signals) -> None:
    server.drip = 0.05
    here = Path(__file__).parent
    code = f"import sys; sys.path[:0] = {[str(here), str(here.parent)]}\n"
    code += "from toy import TOY; from pagoda.catalog.pull import pull; pull(TOY)"
    process = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.DEVNULL)
    part = cached_path(TOY).with_suffix(".parts") / "toy-model-part0-1.2.3.whl.part"
    deadline = time.monotonic() + 60
    while not (part.exists() and part.stat().st_size > 100_000):
        assert time.monotonic() < deadline
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(kind)
    assert process.wait(60) != 0
    assert len(left()) == 1
    server.drip = 0
    server.asked.clear()
    check_pulled(pull(TOY))
    assert server.file_requests()[0] is not None


# --- lies and refusals


def test_a_corrupted_body(server: IndexServer) -> None:
    good = server.files[FIRST]
    server.files[FIRST] = good[:5000] + b"!" + good[5001:]
    with pytest.raises(DownloadError, match=f"toy could not be fetched: .*{FIRST} has SHA-256 .* the index promises"):
        pull(TOY)
    assert left() == set()
    server.files[FIRST] = good
    check_pulled(pull(TOY))


def test_an_index_that_promises_another_hash(server: IndexServer) -> None:
    server.promised[SECOND] = "0" * 64
    with pytest.raises(DownloadError, match=f"but the index promises {'0' * 64}"):
        pull(TOY)
    assert not cached_path(TOY).exists()


def test_a_wheel_with_another_file_in_it(server: IndexServer) -> None:
    wheel = TOY.wheels[0]
    server.files[FIRST] = make_wheel(wheel.project, wheel.version, {wheel.member: PARTS[0][:-1] + b"!"})
    server.promised = dict.fromkeys(WHEELS, "")  # an index that promises nothing
    with pytest.raises(
        DownloadError, match=rf"has 1200000 bytes and SHA-256 .*; expected are 1200000 and {TOY.sha256}"
    ):
        pull(TOY)
    assert left() == set()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"not a zip archive at all", "cannot be unpacked: File is not a zip file"),
        (make_wheel("toy-model-part0", "1.2.3", {"else": b"x"}), "cannot be unpacked: .*no item named"),
        (
            make_wheel("toy-model-part0", "1.2.3", {TOY.wheels[0].member: bytes(5_000_000)}),
            "larger than the 1200000 bytes",
        ),
    ],
)
def test_wheels_that_hold_something_else(server: IndexServer, content: bytes, words: str) -> None:
    server.files[FIRST], server.promised[FIRST] = content, hashlib.sha256(content).hexdigest()
    with pytest.raises(DownloadError, match=words):
        pull(TOY)
    assert left() == set()


def test_a_file_that_is_gone(server: IndexServer) -> None:
    server.statuses = [404]
    with pytest.raises(DownloadError, match=r"HTTP 404 .*run `pagoda pull toy` where the package index can be reached"):
        pull(TOY)


def test_a_server_that_never_gets_anywhere(server: IndexServer) -> None:
    server.drops = [1000] + [0] * 20
    with pytest.raises(DownloadError, match="dropped after 1000 bytes, 5 times in a row; the next attempt goes on"):
        pull(TOY)
    server.drops = []
    server.asked.clear()
    check_pulled(pull(TOY))
    assert server.file_requests() == ["bytes=1000-", None]


def test_an_index_without_the_project(server: IndexServer) -> None:
    server.files.clear()
    with pytest.raises(
        DownloadError, match=r"/simple: HTTP 404 Not Found; there is no pip to fall back on; run `pagoda"
    ):
        pull(TOY)


def test_an_index_without_the_version(server: IndexServer) -> None:
    server.files = {FIRST.replace("1.2.3", "1.2.4"): b"", FIRST.replace(".whl", ".zip"): b""}
    server.promised = dict.fromkeys(server.files, "0" * 64)
    with pytest.raises(DownloadError, match=r"has no wheel of toy-model-part0==1\.2\.3"):
        pull(TOY)


@pytest.mark.parametrize(
    "page",
    [
        b"[]",
        b"{}",
        b"{",
        b'{"files": [{}]}',
        b'{"files": 3}',
        b'{"files": [{"url": "x", "hashes": 1}]}',
        b"\xff",
        b"[" * 10**5,
    ],
)
def test_an_index_that_answers_nonsense(server: IndexServer, page: bytes) -> None:
    server.page = page
    with pytest.raises(DownloadError, match=r"/simple: (its answer is no|Expecting|has no|'utf-8')"):
        pull(TOY)


def test_nothing_listens(with_pip: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    with pytest.raises(
        DownloadError, match=r"127\.0\.0\.1:9/simple: Connection refused; pip: .*give the path of another"
    ):
        pull(TOY)
    assert left() == set()


def test_passwords_reach_the_index_and_no_message(server: IndexServer, monkeypatch: pytest.MonkeyPatch) -> None:
    server.password = "user:p@ss"
    monkeypatch.setenv("PIP_INDEX_URL", f"http://user:p%40ss@127.0.0.1:{server.server_port}/simple/")
    check_pulled(pull(TOY))
    shutil.rmtree(cached_path(TOY).parent)
    server.statuses = [403]
    with pytest.raises(DownloadError, match="HTTP 403") as caught:
        pull(TOY)
    assert "ss@" not in str(caught.value)
    server.index_status = 403
    with pytest.raises(DownloadError, match="HTTP 403") as caught:
        pull(TOY)
    assert "ss@" not in str(caught.value)


def test_passwords_do_not_reach_another_host(server: IndexServer, monkeypatch: pytest.MonkeyPatch) -> None:
    server.password = "user:secret"
    monkeypatch.setenv("PIP_INDEX_URL", f"http://user:secret@127.0.0.1:{server.server_port}/simple")
    with serving(dict(WHEELS)) as other:
        server.redirect = other.url
        check_pulled(pull(TOY))
        assert len(other.asked) == 2
        assert all(authorization is None for _, _, authorization in other.asked)


# --- the cache


def test_offline_and_absent() -> None:
    with pytest.raises(
        DownloadError, match=r"^toy: it is not in the cache, and fetching is switched off; run `pagoda pull toy`"
    ):
        catalog.resolve("toy", offline=True)
    assert left() == set()


@pytest.mark.parametrize("damage", [b"", b"".join(PARTS)[:-1], b"".join(PARTS)[:-1] + b"!"])
def test_a_damaged_copy_is_replaced(server: IndexServer, damage: bytes) -> None:
    path = pull(TOY)
    path.write_bytes(damage)
    with pytest.raises(DownloadError, match="the copy in the cache is damaged"):
        pull(TOY, offline=True)
    check_pulled(pull(TOY))


def test_a_copied_file_is_accepted(server: IndexServer) -> None:
    cached_path(TOY).parent.mkdir(parents=True)
    cached_path(TOY).write_bytes(b"".join(PARTS))
    check_pulled(pull(TOY, offline=True))
    assert server.asked == []


def test_a_cache_that_cannot_be_written(tmp_path: Path, server: IndexServer) -> None:
    (tmp_path / "cache").write_text("a file where the directory should be")
    with pytest.raises(DownloadError, match=r"toy could not be stored: .*cache"):
        pull(TOY)


def test_a_full_disk(server: IndexServer, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage("/")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1_000_000))
    with pytest.raises(DownloadError, match="has 1 MB free, and 2 MB are needed"):
        pull(TOY)
    assert server.file_requests() == []


def test_a_disk_that_fills_up(server: IndexServer, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int, data: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(download.os, "write", full)
    with pytest.raises(DownloadError, match=r"toy could not be stored: .*\.part: No space left on device"):
        pull(TOY)
    assert len(server.file_requests()) == 1  # not taken for a broken network
