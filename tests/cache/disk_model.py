"""The tier against brute force: the model of the cache, whose pages now also go to real files and come back, while
files are torn, flipped, swapped, deleted, written under other keys, and the disk fills up.

Bytes of a page spell out what its slots hold. So a page that comes back wrong, or under another tenant, is seen by the
checks that the cache's own model makes of every slot.
"""

from __future__ import annotations

import errno
import json
import os
from collections import Counter
from pathlib import Path

from pagoda.cache import Disk, KVCache, PinRecord
from pagoda.cache.kv_dir import KVDir
from pagoda.cache.page_file import PageId, Seal
from pagoda.cache.shelf import PAGE, PIN, Shelf
from pagoda.cache.tables import NO_TOKEN
from pagoda.cache.tier import BLOCK, State
from pagoda.types import DiskFault

from .model import KEYS, Draw, Model
from .spelled import MOST

UNIT = 2048
IDENTITY = "model f16, page 2"


class FaultyDir(KVDir):
    """A directory on a disk that can be full."""

    full = False
    written = failed = staticmethod(lambda _: None)

    def write(self, name, parts):
        if self.full:
            self.failed(name)
            raise OSError(errno.ENOSPC, "No space left on device")
        super().write(name, parts)
        if name.endswith(PAGE):
            self.written(name)


class Waiter:
    sought = False


class DiskModel(Model):
    """`names` says which file holds which (key, string); `bad` files were meddled with since."""

    def __init__(self, path: Path, pages, page_size, reserve=0, windows=(), files=8):
        self.path, self.shape, self.budget = path, (pages, page_size, reserve, windows), files * BLOCK
        self.files: dict[str, tuple[str, tuple[int, ...]]] = {}
        self.bad: set[str] = set()
        self.strange: set[str] = set()
        self.told: dict[int, PinRecord] = {}
        self.maybe: dict[int, PinRecord] = {}
        """Unpinned, and the record may still be there."""
        self.now = 0.0
        self.met = Counter()
        self.waiters: list[Waiter] = []
        self.lost_pins = 0
        super().__init__(pages, page_size, reserve, windows)
        self.open()

    def open(self, identity=IDENTITY):
        pages, page_size, reserve, windows = self.shape
        self.cache = KVCache(pages, page_size, reserve=reserve, windows=windows, chunk=MOST)
        self.directory = FaultyDir(self.path)
        self.directory.written, self.directory.failed = self.written, self.failed
        self.shelf = Shelf(self.directory, Seal(self.directory.key, identity), UNIT, 6 * UNIT)
        self.disk = Disk(self.cache, self.shelf, self.budget, lambda: self.now)
        self.shelf.work()
        self.lines, self.kept, self.evicted, self.pins, self.memory, self.seen = {}, set(), set(), {}, {}, {}
        self.waiters, self.saving, self.protected = [], {}, {}

    # What a plan does.

    def plan(self) -> tuple[int, list[Waiter]]:
        """A plan that does nothing but move pages: saves see memory as it was, loads come next."""
        before = dict(self.memory)
        loads, back = self.disk.begin()
        saves = self.disk.saves()
        self.carry_out(before, saves, loads)
        for waiter in back:
            self.waiters.remove(waiter)
        return len(loads), back

    def carry_out(self, before, saves, loads=()):
        for move in saves:
            raw = json.dumps([["".join(map(str, before[g, page, slot])) for slot in range(self.size)]
                              for g, page in enumerate(move.pages)]).encode()  # fmt: skip
            page = self.shelf._promised[move.ticket]
            string = tuple(map(int, json.loads(raw)[0][-1]))
            assert string[page.start :] == page.tokens, "another page is saved than was said"
            assert len(string) == page.start + self.size
            self.saving[page.name.hex() + PAGE] = page.tenant, string
            self.shelf.put(move.ticket, memoryview(raw.ljust(UNIT)))
            self.met["saves"] += 1
        assert len({move.pages for move in loads}) == len(loads), "a page is loaded twice"
        for move in loads:
            raw = bytes(self.shelf.take(move.ticket))
            for g, slots in enumerate(json.loads(raw)):
                for slot, tag in enumerate(slots):
                    self.memory[g, move.pages[g], slot] = tuple(map(int, tag))
            self.met["loads"] += 1
        if loads:
            self.shelf.loaded(len(loads), 1e-9)
        now = self.strings()
        self.evicted |= self.kept - now
        for key, string in now - self.kept:
            assert len(string) % self.size == 0
            pinned = any(k in (None, key) and pin[: len(string)] == string for k, pin in self.pins.values())
            assert pinned or (key, string) in self.files.values(), "a page came from nowhere, or from another tenant"
        self.kept = now

    def settle(self) -> None:
        """All that waits for the disk is done, and heard of."""
        self.shelf.work()
        self.maybe.clear()
        self.disk._hear()

    def written(self, name: str) -> None:
        self.files[name] = self.saving[name]
        self.bad.discard(name)
        self.strange.discard(name)

    def failed(self, name: str) -> None:
        """A pin whose record could not be written is not there after a restart; that is told as a fault."""
        for number, pin in list(self.told.items()):
            if self.shelf.seal.pin_name(number, pin.owner, pin.tokens).hex() + PIN == name:
                del self.told[number]

    def work(self, draw: Draw) -> None:
        """The disk gets round to some of it."""
        for _ in range(draw(0, 4)):
            if not (self.shelf._write_one() if draw(0, 1) else self.shelf._read_one()):
                break

    # Operations. Those of the cache may evict: what they save is what was there before them.

    def admit(self, draw: Draw) -> None:
        before = dict(self.memory)
        super().admit(draw)
        line = self.lines[self.names - 1]
        self.disk.found(self.cache.match(line.key, (*line.tokens, NO_TOKEN)))
        self.carry_out(before, self.disk.saves())

    def write(self, draw: Draw) -> None:
        before = dict(self.memory)
        super().write(draw)
        self.carry_out(before, self.disk.saves())

    def pin(self, draw: Draw) -> None:
        was = set(self.pins)
        known = {name: self.pins[name] for name in was}
        key = None
        original = self.cache.pin

        def spy(number, owner, tokens, shared, name=""):
            nonlocal key
            key = owner, shared
            return original(number, owner, tokens, shared, name)

        self.cache.pin = spy
        super().pin(draw)
        self.cache.pin = original
        for number in set(self.pins) - set(known):
            record = PinRecord(number, key[0], self.pins[number][1], key[1], f"pin {number}")
            self.disk.pinned(record)
            self.protected[number] = record
            self.told[number] = record

    def unpin(self, draw: Draw) -> None:
        before = set(self.pins)
        super().unpin(draw)
        for number in before - set(self.pins):
            self.disk.unpinned(number)
            self.protected.pop(number, None)
            if number in self.told:
                self.maybe[number] = self.told.pop(number)

    def clear(self, draw: Draw) -> None:
        if draw(0, 4):
            return
        self.disk.clear(self.cache.clear)
        self.see_evictions(True)
        self.settle()
        self.shelf.work()
        kept = {name for name in os.listdir(self.path) if name.endswith(PAGE) and self.listed(name)}
        pinned = {page.name.hex() + PAGE for pin in self.told_now() for page in self.disk._names.pages(*pin)}
        assert kept <= pinned, "what was cleared is still on disk"
        self.met["cleared"] += 1

    def told_now(self):
        return [(pin.owner, pin.tokens) for pin in self.protected.values()]

    def prompt(self, draw: Draw) -> tuple[str, tuple[int, ...]]:
        known = sorted(self.files.values())
        if known and draw(0, 4):
            key, string = known[draw(0, len(known) - 1)]
            return key if draw(0, 3) else KEYS[draw(0, 2)], (*string, *self.tokens(draw, 4))
        return KEYS[draw(0, 2)], self.tokens(draw, 9)

    def look(self, draw: Draw) -> None:
        """Fetch, and wait until all is there: exactly what brute force says comes back."""
        self.settle()
        while self.waiters:
            self.plan()
            self.settle()
        key, tokens = self.prompt(draw)
        match = self.cache.match(key, tokens)
        first, last = match.length // self.size, (len(tokens) - 1) // self.size
        index = {what: name for name, what in self.files.items() if self.listed(name)}
        chain = [index.get((key, tokens[: (i + 1) * self.size])) for i in range(first, last)]
        run = chain.index(None) if None in chain else len(chain)
        bad = sum(name in self.bad for name in chain[:run])
        good = next((i for i, name in enumerate(chain[:run]) if name in self.bad), run)
        others = [free for free, window in zip(self.cache.available, self.windows, strict=True) if window is None]
        room = min(others) - sum(self.cache._pools[0].holds(node.pages[0])[:1] == (0,) for node in match.own)
        faults = self.read_faults()
        waiter = Waiter()
        fetched = self.disk.fetch(waiter, key, tokens, match)
        assert fetched == (run > 0), f"{run} pages are on disk"
        assert waiter.sought
        if not fetched:
            return
        self.waiters.append(waiter)
        loaded = 0
        while self.waiters:
            self.shelf.work()
            loaded += self.plan()[0]
            self.shelf.work()
        found = self.cache.match(key, tokens).length
        crowded = room < good or any(
            self.cache.available[g] < good + self.windows[g] // self.size + 2 for g in self.gs()
        )
        reached = loaded == good or (loaded < good and crowded) or found >= (first + good) * self.size
        assert reached, f"{loaded} of {good} pages came back"
        assert loaded < good or found >= (first + good) * self.size
        found = self.read_faults() - faults
        assert (good < run) <= found <= bad or loaded < good, "each fault is told once, and none is made up"
        self.met["restored"] += loaded
        self.met["bad files"] += good < run
        self.settle()

    def read_faults(self) -> int:
        return sum(n for fault, n in self.disk.report().faults if fault is not DiskFault.DISK_FULL)

    def listed(self, name: str) -> bool:
        entry = self.disk._tier._entries.get(bytes.fromhex(name.removesuffix(PAGE)))
        return entry is not None and entry.state is State.KEPT

    def order(self, draw: Draw) -> None:
        """Fetch without waiting."""
        key, tokens = self.prompt(draw)
        waiter = Waiter()
        if self.disk.fetch(waiter, key, tokens, self.cache.match(key, tokens)):
            self.waiters.append(waiter)

    def step(self, draw: Draw) -> None:
        self.plan()

    def lose_patience(self, draw: Draw) -> None:
        self.now += 10
        self.plan()
        self.met["lost patience"] += 1
        assert not self.waiters, "after 10 s nobody waits for a disk"

    # What can happen to files.

    def file(self, draw: Draw, ending=PAGE) -> Path | None:
        self.settle()
        names = sorted(name for name in os.listdir(self.path) if name.endswith(ending))
        return self.path / names[draw(0, len(names) - 1)] if names else None

    def spoil(self, draw: Draw) -> None:
        path = self.file(draw)
        if path is None:
            return
        raw, kind = path.read_bytes(), draw(0, 6)
        self.met[f"spoiled {kind}"] += 1
        if not raw:
            return
        if kind == 0:  # one bit
            at = draw(0, len(raw) - 1)
            raw = raw[:at] + bytes([raw[at] ^ 1 << draw(0, 7)]) + raw[at + 1 :]
        elif kind == 1:  # torn
            raw = raw[: draw(0, len(raw) - 1)]
        elif kind == 2:  # gone
            path.unlink()
        elif kind == 3:  # another page of the same key
            other = self.file(draw)
            if other == path or other.read_bytes() == raw:
                return
            raw = other.read_bytes()
        elif kind == 4:  # written under another key
            raw = raw[:12] + bytes(8) + raw[20:]
        elif kind == 5:  # nothing of ours
            raw = b"\x7fELF" + raw[4:]
        else:  # of another model
            raw = self.foreign(path)
        if kind != 2:
            path.write_bytes(raw)
        self.bad.add(path.name)

    def foreign(self, path: Path) -> bytes:
        seal = Seal(self.directory.key, "another model")
        key, string = self.files.get(path.name, ("", (0,) * self.size))
        page = PageId(bytes.fromhex(path.stem), bytes(20), key, len(string) - self.size, string[-self.size :])
        header = seal.header(page, UNIT)
        return header + bytes(UNIT) + seal.footer(header, bytes(UNIT))

    def fill(self, draw: Draw) -> None:
        """The disk is full, or no longer."""
        self.directory.full = not self.directory.full and not draw(0, 3)
        if not self.directory.full:
            self.shelf._refused_at = None  # a minute goes by
        self.met["full"] += self.directory.full

    def restart(self, draw: Draw) -> None:
        """An orderly end, or a crash at any moment; temporary files of it, and perhaps a torn one, are left."""
        orderly = draw(0, 1)
        if orderly:
            self.directory.full = False
            self.shelf._refused_at = None
            self.settle()
            self.disk._hot.clear()
            before = dict(self.memory)
            self.disk._hot.update(dict.fromkeys(self.disk._latest()))
            while self.disk._hot:
                self.carry_out(before, self.disk.saves())
                self.settle()
        self.work(draw)
        self.directory.close()
        if not orderly:
            (self.path / f"{'ab' * 20}{PAGE}.tmp").write_bytes(b"half")
        self.met["restarts"] += 1
        self.start_again(orderly)

    def start_again(self, orderly) -> None:
        pages = {name for name in os.listdir(self.path) if name.endswith(PAGE)}
        self.files = {name: what for name, what in self.files.items() if name in pages}
        written = {n for n in os.listdir(self.path) if n.endswith(PIN)}
        gone = {name for name in self.bad if name not in pages}
        self.bad -= gone
        self.open()
        assert not [name for name in os.listdir(self.path) if name.endswith(".tmp")], "leftovers of a crash"
        before = self.strange
        unknown = {info.name for info in self.directory.files(PAGE)}
        self.strange = {name for name in unknown if not self.listed(name)}
        assert self.strange <= self.bad | before, "a sound page is not listed"
        self.files = {name: what for name, what in self.files.items() if name not in self.strange}
        self.bad -= self.strange
        records = {record.number: record for record in self.disk.records}
        assert len(records) == len(written)
        assert set(records.items()) <= {*self.told.items(), *self.maybe.items()}, "a pin came from nowhere"
        assert not orderly or set(self.told.items()) <= set(records.items()), "a pin was lost"
        for number in set(self.told) - set(records):
            del self.told[number]
        for number in list(records):  # whoever starts an engine pins them again; here they are let go
            self.disk.unpinned(number)
            self.told.pop(number, None)
        self.maybe.clear()
        self.shelf.work()

    def check(self) -> None:
        super().check()
        self.disk.check()
        for name in os.listdir(self.path):
            mine = os.stat(self.path / name).st_mode & 0o077 == 0
            assert mine or name in self.bad | self.strange, f"{name} is open to others"
            for key in KEYS[1:]:
                assert key not in name or len(key) == 1, "a tenant's name is in a file's"
        sizes = [os.stat(self.path / name).st_size for name in os.listdir(self.path) if name.endswith(PAGE)]
        used = sum(-(-size // BLOCK) * BLOCK for size in sizes)
        assert used <= self.budget + 6 * BLOCK, "more is on disk than may be, and than waits to be removed"


OPERATIONS = (
    "admit", "admit", "write", "write", "write", "commit", "commit", "commit", "release", "release", "pin", "unpin",
    "clear", "look", "look", "look", "order", "step", "step", "work", "work", "spoil", "fill", "fill", "seldom",
)  # fmt: skip
SELDOM = ("lose_patience", "restart")
NEED_LINES = {"write", "commit", "release", "fork"}


def step(model: DiskModel, draw: Draw) -> None:
    name = OPERATIONS[draw(0, len(OPERATIONS) - 1)]
    if name == "seldom":
        name = SELDOM[draw(0, 1)] if not draw(0, 2) else "look"
    if name in NEED_LINES and not model.lines:
        name = "admit"
    if name == "admit" and len(model.lines) >= 4:
        name = "release"
    getattr(model, name)(draw)
    model.check()
