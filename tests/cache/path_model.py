"""Trees of drafts on simulated slots: the part of `model` that opens paths, writes to them and goes on with one."""

from __future__ import annotations

from pagoda.cache import PathStart
from pagoda.cache.groups import HOLE


class Paths:
    """Has lines, a `cache` and a `memory`: `model.Model`."""

    def tree(self, draw) -> None:
        """A step with a tree: paths that leave the last token's or one another, one of which the line goes on with."""
        name = self.pick(draw)
        line = self.lines[name]
        start = len(line.tokens) - 1
        if start < self.least(name):
            return
        own = (line.tokens[start], *self.tokens(draw, 4))
        refused = self.counts["refused"]
        self.write_at(name, start, own)
        if self.counts["refused"] > refused:
            return
        strings, starts = [line.tokens], []
        for _ in range(draw(1, 4)):
            leaves = draw(0, len(strings) - 1)
            at = draw(max(start + 1, starts[leaves - 1].at if leaves else 0), len(strings[leaves]))
            strings.append(strings[leaves][:at] + self.tokens(draw, 4))
            starts.append(PathStart(leaves, at, len(strings[-1])))
        if self.open_paths(name, start, strings, starts, spare=draw(0, 1)):
            self.write_paths(name, start, strings)
            if draw(0, 1):
                self.publish_one(name, start, draw(0, 1))
            self.read_paths(name, strings)
            if draw(0, 5) == 5:
                self.counts["ended with paths"] += 1
                self.end(name)
            else:
                path = draw(0, len(starts))
                self.cache.close_paths(name, path)
                line.tokens = strings[path]
                self.counts["right paths"] += path > 0

    def open_paths(self, name, start, strings, starts, spare) -> bool:
        """Refused exactly if there are too few pages."""
        wanted = sum(-(-path.upto // self.size) - path.at // self.size for path in starts)
        used = self.cache.used
        free = min(pool.free for pool, window in zip(self.cache._pools, self.windows, strict=True) if window is None)
        fits = wanted + spare <= min(self.cache.available)
        opened = self.cache.open_paths(name, start, starts, spare)
        assert opened.fits == fits
        assert self.cache.used == used + fits * wanted * len(self.pages)
        if not fits:
            self.counts["refused paths"] += 1
            return False
        self.see_evictions(wanted > free)
        for copy in opened.copies:
            for slot in range(copy.slots):
                self.memory[copy.group, copy.target, slot] = self.memory[copy.group, copy.source, slot]
        self.cache.check()
        return True

    def write_paths(self, name, start, strings) -> None:
        """Every path's positions from `start` on, into its own table: no slot twice, but with the same."""
        written: dict[tuple[int, int, int], tuple[int, ...]] = {}
        for path, string in enumerate(strings):
            for group, table in enumerate(self.cache.table(name, path)):
                for position in range(start, len(string)):
                    slot = group, table[position // self.size], position % self.size
                    if path and slot not in written:
                        holders = self.holders(group, slot[1])
                        assert not holders, "a path writes to another's page"
                    assert written.setdefault(slot, string[: position + 1]) == string[: position + 1]
        self.memory.update(written)

    def publish_one(self, name, start, count) -> None:
        """The plan is handed over: its last known token's page may be found, and be swapped for another's."""
        line = self.lines[name]
        if line.committed <= start and count:
            upto = start + 1
            self.cache.commit(name, line.tokens[line.committed : upto])
            line.committed = upto
            self.publish(line)
            self.cache.check()

    def read_paths(self, name, strings) -> None:
        for path, string in enumerate(strings):
            for group, table in enumerate(self.cache.table(name, path)):
                for position in range(self.size * table.count(HOLE), len(string)):
                    slot = group, table[position // self.size], position % self.size
                    assert self.memory[slot] == string[: position + 1]
