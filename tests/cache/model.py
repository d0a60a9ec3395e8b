"""The cache against brute force: a model that knows strings, and simulated slots that know what was written to them.

Every operation draws its choices from `draw(low, high)`, so that hypothesis and a plain random generator drive the same
code. After each of them `check` compares everything that can be seen.
"""

from __future__ import annotations

from collections.abc import Callable

from pagoda.cache import KVCache
from pagoda.cache.groups import HOLE
from pagoda.cache.tables import READY
from pagoda.types import CacheCause

from .path_model import Paths
from .spelled import MOST, Spelled, common

Draw = Callable[[int, int], int]
KEYS = ("", "b", "c")


class Line:
    """A sequence of the model."""

    def __init__(self, key: str, tokens: tuple[int, ...], committed: int):
        self.key, self.tokens, self.committed = key, tokens, committed


class Model(Paths, Spelled):
    """`kept` is what the tree must have: (key, all tokens up to a kept page's end, or to where a kept tail ends)."""

    def __init__(self, pages, page_size, reserve=0, windows=(), vocabulary=2):
        self.size, self.pages, self.vocabulary = page_size, tuple(pages), vocabulary
        self.windows = tuple(windows) or (None,) * len(pages)
        self.cache = KVCache(pages, page_size, reserve=reserve, windows=windows, chunk=MOST)
        self.reserve = reserve
        self.lines: dict[int, Line] = {}
        self.kept: set[tuple[str, tuple[int, ...]]] = set()
        self.evicted: set[tuple[str, tuple[int, ...]]] = set()
        self.pins: dict[int, tuple[str | None, tuple[int, ...]]] = {}
        """Whom each serves (None: all), and its tokens."""
        self.memory: dict[tuple[int, int, int], tuple[int, ...]] = {}
        self.seen: dict[int, tuple] = {}
        self.names = 0
        self.counts = dict.fromkeys(
            [
                *CacheCause,
                "evicted pages",
                "refused",
                "partial",
                "copies",
                "other's pin",
                "born beams",
                "dead beams",
                "not for others",
                "right paths",
                "refused paths",
                "ended with paths",
                "holes",
                "windows gone",
                "slots",
            ],
            0,
        )

    # Choices.

    def pick(self, draw: Draw) -> int:
        names = sorted(self.lines)
        return names[draw(0, len(names) - 1)]

    def tokens(self, draw: Draw, most: int) -> tuple[int, ...]:
        return tuple(draw(0, self.vocabulary - 1) for _ in range(draw(1, most)))

    # Operations.

    def admit(self, draw: Draw) -> None:
        key, tokens = KEYS[draw(0, 2) // 2], self.tokens(draw, 12)
        known = sorted(self.kept)
        if known and draw(0, 2):  # a prompt that has a chance
            tokens = known[draw(0, len(known) - 1)][1] + tokens
        match = self.cache.match(key, tokens)
        self.explain(key, tokens, match)
        wanted, available = self.cache.wanted(match, len(tokens)), self.cache.available
        assert self.cache.has([wanted], 0) == all(w <= a for w, a in zip(wanted, available, strict=True))
        name = self.names
        assert self.cache.admit(name, tokens, key, match) is match
        self.names += 1
        self.lines[name] = Line(key, tokens[: match.length], match.length)
        self.publish(self.lines[name])
        rest = self.cache.pages_for(len(tokens)) - match.length // self.size
        assert available[0] - wanted[0] == self.cache.available[0] - rest + bool(
            match.partial and self.alone(self.cache.table(name)[0][-1])
        ), "the pages a newcomer takes are miscounted"
        for group, window in enumerate(self.windows):
            if window is not None:
                taken = available[group] - self.cache.available[group]
                assert taken <= wanted[group] <= wanted[0] + len(match.units), "a newcomer takes more than it should"
        if match.length % self.size:
            self.counts["partial"] += 1

    def alone(self, page):
        uses, _, pins = self.cache._pools[0].holds(page)
        return uses == 1 and not pins

    def explain(self, key, tokens, match):
        """The longest common prefix over all strings, and whether the cause is true."""
        most = len(tokens) - 1
        own = [s for k, s in self.kept if k == key]
        pinned = [s for k, s in self.pins.values() if k in (None, key)]
        mine, theirs = (max([common(s, tokens, most) for s in ss], default=0) for ss in (own, pinned))
        length = max(mine, theirs)
        least, most_of_all = self.lengths(key, tokens, most)
        assert least <= match.length <= most_of_all <= length, f"{match} for {tokens}"
        if match.length < length:
            assert match.cause in (CacheCause.EVICTED, CacheCause.WHOLE)
            self.counts["windows gone"] += 1
            return
        self.counts[match.cause] += 1
        self.counts["other's pin"] += theirs > mine
        self.counts["not for others"] += length < max(
            [common(s, tokens, most) for k, s in self.pins.values() if k != key], default=0
        )
        own_goes_on, pins_go_on = (
            any(len(s) > length and s[:length] == tokens[:length] for s in kept) for kept in (own, pinned)
        )
        goes_on = pins_go_on if theirs > mine else own_goes_on
        assert (match.cause is CacheCause.WHOLE) == (length == most)
        if match.cause is not CacheCause.WHOLE:
            # Of equal lengths, windows may tell that pins serve, or which of them.
            assert match.differs == goes_on or (self.gs() and theirs == length and pins_go_on >= match.differs)
        if match.instead:
            ahead = tokens[:length] + match.instead
            visible = own + [s for k, s in self.pins.values() if k == key]
            assert any(s[: len(ahead)] == ahead for s in visible), "told of what is not this key's own"
            assert match.instead[0] != tokens[length]
        if match.cause is CacheCause.EVICTED:
            assert any(k == key and s[: length + 1] == tokens[: length + 1] for k, s in self.evicted)
        if match.cause is CacheCause.OTHER_KEY:
            end = length // self.size * self.size + self.size
            assert any(k != key and s[:end] == tokens[:end] and len(s) >= end for k, s in self.kept)

    def write(self, draw: Draw) -> None:
        name = self.pick(draw)
        size = len(self.lines[name].tokens)
        self.write_at(name, size if draw(0, 2) else draw(self.least(name), size), self.tokens(draw, MOST))

    def write_at(self, name: int, start: int, tokens: tuple[int, ...]) -> None:
        line, upto = self.lines[name], start + len(tokens)
        first, last = start // self.size, -(-upto // self.size)
        lack, short = 0, False
        before = self.cache.table(name)
        for group, count in enumerate(self.pages):
            table = before[group]
            hold = {page: self.holders(group, page) for page in self.in_use(group)}
            wanted = sum(1 for i in range(first, last) if i >= len(table) or hold[table[i]] > 1)
            passed = [page for page in table[: self.begin(group, start)] if page != HOLE]
            back = sum(1 for page in (*passed, *table[last:]) if hold[page] == 1)
            lack = max(lack, wanted - (count - len(hold) + back))
            split = sum(1 for i in range(first, last) if i >= len(table) or self.cache._pools[group].shared(table[i]))
            short |= self.windows[group] is None and split > self.cache._pools[group].free
        slot = self.cache.next_slot(name, start) if upto == start + 1 else None
        if slot is not None:
            assert slot is before, "a slot of its own changes no table"
            self.counts["slots"] += 1
        extension = self.cache.extend(name, start, upto) if slot is None else READY
        assert (extension.fits, extension.lack) == (not lack, lack)
        if lack:
            assert self.cache.table(name) is before
            assert not extension.copies
            self.counts["refused"] += 1
            return
        self.counts["copies"] += len(extension.copies)
        for copy in extension.copies:
            assert 0 < copy.slots <= self.size
            for slot in range(copy.slots):
                self.memory[copy.group, copy.target, slot] = self.memory[copy.group, copy.source, slot]
        if start < line.committed:
            line.committed = start
            line.tokens = line.tokens[:start]
        line.tokens = line.tokens[:start] + tokens
        for group, table in enumerate(self.cache.table(name)):
            holes, begin = table.count(HOLE), self.begin(group, start)
            assert holes == begin or (slot is not None and holes < begin), "a window is not where it should be"
            for position in range(start, upto):
                page = table[position // self.size]
                assert self.holders(group, page) == 1, "a page that another table holds is written to"
                assert not self.cache._pools[group].shared(page), "a kept page is written to"
                self.memory[group, page, position % self.size] = line.tokens[: position + 1]
        self.see_evictions(short)

    def see_evictions(self, may: bool) -> None:
        """Learn what was evicted, and that it had to be and could be."""
        gone = self.kept - self.strings()
        assert may or not gone, "evicted although pages were free"
        self.counts["evicted pages"] += len(gone)
        self.kept -= gone
        self.evicted |= gone
        for key, string in gone:
            longer = [s for k, s in self.kept if k == key and s[: len(string)] == string]
            assert not longer or len(string) % self.size, "something is kept below an evicted page"

    def commit(self, draw: Draw) -> None:
        name = self.pick(draw)
        line = self.lines[name]
        upto = draw(line.committed, len(line.tokens))
        self.cache.commit(name, line.tokens[line.committed : upto])
        line.committed = upto
        self.publish(line)

    def publish(self, line: Line) -> None:
        for end in range(self.size, line.committed + 1, self.size):
            self.keep(line.key, line.tokens[:end])

    def keep(self, key, string):
        if not any(k == key and s[: len(string)] == string for k, s in self.kept):
            tails = {(key, string[:end]) for end in range(len(string)) if end % self.size}
            self.kept = self.kept - tails | {(key, string)}

    def beams(self, draw: Draw) -> None:
        """A round of beam search: of some lines of one length some die, others have children, and each goes on with a
        token of its own. The first child of each takes its place.
        """
        size = len(self.lines[self.pick(draw)].tokens)
        group = [name for name, line in self.lines.items() if len(line.tokens) == size and line.tokens][:4]
        if not group:
            return
        parents = [group[draw(0, len(group) - 1)] for _ in range(4)]
        for name in group:
            if name not in parents:
                self.end(name)
                self.counts["dead beams"] += 1
        children = list(dict.fromkeys(parents))
        for index, parent in enumerate(parents):
            if parent in parents[:index] and len(self.lines) < 8:
                children.append(self.names)
                self.fork_at(parent, size)
        self.check()
        for name in children:
            self.write_at(name, size, self.tokens(draw, 1))
            self.check()
        self.counts["born beams"] += len(children) - len(set(parents))

    def slide(self, draw: Draw) -> None:
        name = self.pick(draw)
        self.cache.slide(name)
        for group, table in enumerate(self.cache.table(name)):
            assert table.count(HOLE) >= min(self.begin(group, self.lines[name].committed), len(table))

    def fork(self, draw: Draw) -> None:
        parent = self.pick(draw)
        least, known = self.least(parent), len(self.lines[parent].tokens)
        assert not least or not self.cache.forks(parent, least - 1)
        if least <= known:
            self.fork_at(parent, draw(least, known))

    def fork_at(self, parent: int, at: int) -> None:
        line = self.lines[parent]
        assert self.cache.forks(parent, at)
        used = self.cache.used
        self.cache.fork(parent, self.names, at)
        assert self.cache.used == used, "a fork takes no page"
        self.lines[self.names] = Line(line.key, line.tokens[:at], min(at, line.committed))
        self.names += 1

    def release(self, draw: Draw) -> None:
        self.end(self.pick(draw))

    def end(self, name: int) -> None:
        line = self.lines.pop(name)
        self.cache.release(name)
        if line.committed % self.size:
            self.keep(line.key, line.tokens[: line.committed])

    def pin(self, draw: Draw) -> None:
        known = sorted(self.kept)
        if not known:
            return
        key, string = known[draw(0, len(known) - 1)]
        string = string[: draw(1, len(string))] + ((0,) if draw(0, 9) == 9 else ())
        fits = all(self.pin_fits(group, len(string)) for group in range(len(self.pages)))
        assert self.cache.pin_fits(len(string)) == fits
        if not fits:
            return
        surely, perhaps = (length == len(string) for length in self.lengths(key, string, len(string)))
        shared = bool(draw(0, 1))
        info = self.cache.pin(self.names, key, string, shared)
        assert perhaps if info is not None else not surely
        if info is not None:
            assert (info.tokens, info.owner, info.shared, info.hits) == (len(string), key, shared, 0)
            self.pins[self.names] = (None if shared else key, string)
        self.names += 1

    def unpin(self, draw: Draw) -> None:
        number = draw(0, self.names)
        assert self.cache.unpin(number) == (number in self.pins)
        self.pins.pop(number, None)

    def clear(self, draw: Draw) -> None:
        if not draw(0, 9):
            self.cache.clear()
            self.see_evictions(True)
            assert self.cache.idle == 0, "something is kept that nobody uses"

    # What can be seen.

    def in_use(self, group):
        pinned = {page for page in range(self.pages[group]) if self.cache._pools[group].holds(page)[2]}
        return pinned | {page for name in self.lines for page in self.cache.table(name)[group]} - {HOLE}

    def holders(self, group, page):
        tables = sum(page in self.cache.table(name)[group] for name in self.lines)
        return tables + 2 * bool(self.cache._pools[group].holds(page)[2])

    def check(self) -> None:
        self.cache.check()
        assert self.strings() == self.kept
        for name, line in self.lines.items():
            table = self.cache.table(name)
            assert self.seen.get(name) != table or self.seen[name] is table
            self.seen[name] = table
            assert self.cache.committed(name) == line.committed
            for group, pages in enumerate(table):
                alone = sum(self.holders(group, page) == 1 for page in pages if page != HOLE)
                assert self.cache.alone(name, group) == alone
                assert not self.cache.owed(name, len(line.tokens))[0]
                for position in range(pages.count(HOLE) * self.size, len(line.tokens)):
                    tag = self.memory[group, pages[position // self.size], position % self.size]
                    assert tag == line.tokens[: position + 1], (name, group, position)
        used = [len(self.in_use(group)) for group in range(len(self.pages))]
        assert self.cache.used == sum(used)
        assert self.cache.available == tuple(count - u for count, u in zip(self.pages, used, strict=True))
        assert {(pin.id, pin.tokens) for pin in self.cache.pins()} == {(n, len(s)) for n, (_, s) in self.pins.items()}
        strings = {key: {s for k, s in self.pins.values() if k == key} for key in (None, *KEYS)}
        least, most = self.pinned(set().union(*strings.values())), sum(map(self.pinned, strings.values()))
        assert len(self.pages) * most >= self.cache.fixed
        assert self.cache.fixed >= (len(self.pages) - len(self.gs())) * least
        for key, string in self.pins.values():
            found = self.cache.match(key or "", (*string, self.vocabulary)).length
            whole = len(string) // self.size * self.size
            assert found >= (whole if self.gs() else len(string)), "a pin is not found"

    def pinned(self, strings):
        """How many pages of one group hold these pins, if no page is there twice."""
        whole = {s[: end + 1] for s in strings for end in range(self.size - 1, len(s), self.size)}
        covered = {s for s in strings if any(len(t) > len(s) and t[: len(s)] == s for t in strings)}
        return len(whole | {s for s in strings - covered if len(s) % self.size})


OPERATIONS = (
    "admit",
    "write",
    "write",
    "write",
    "commit",
    "commit",
    "slide",
    "fork",
    "beams",
    "tree",
    "release",
    "pin",
    "unpin",
    "clear",
)


def step(model: Model, draw: Draw) -> None:
    """One operation, whichever is drawn and possible."""
    name = OPERATIONS[draw(0, len(OPERATIONS) - 1)]
    if name not in ("admit", "pin", "unpin", "clear") and not model.lines:
        name = "admit"
    if name == "admit" and len(model.lines) >= 6:
        name = "release"
    getattr(model, name)(draw)
    model.check()
