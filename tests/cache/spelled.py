"""What the cache keeps, spelled out as strings, and what follows for a match by windows: half of `model`."""

from __future__ import annotations

from pagoda.cache.groups import HOLE

MOST = 9
"""Most tokens written at once."""


class Spelled:
    """Has a `cache`, its shape and a `memory` of simulated slots: `model.Model`."""

    def strings(self):
        """What the tree keeps, spelled out."""
        return {(key, string) for key, string, _ in self.spelled(self.cache._tree)}

    def spelled(self, tree):
        """Key, string and pages of each node that has pages."""
        found = []
        for node in tree.all():
            if node.pages is not None:
                string, up = node.tokens, node.parent
                while up is not None:
                    string, up = up.tokens + string, up.parent
                found.append((tree.key_of(node), string, node.pages))
                for group, page in enumerate(node.pages):
                    if page == HOLE:
                        assert self.windows[group] is not None, "a hole in a group without a window"
                        self.counts["holes"] += 1
                        continue
                    for position in range(len(string) - 1 - (len(string) - 1) % self.size, len(string)):
                        tag = self.memory[group, page, position % self.size]
                        assert tag == string[: position + 1], "the tree has the wrong page"
        return found

    def lengths(self, key, tokens, most):
        """How long a match is at least, and at most: they differ where several kept pages begin with the rest of it,
        and only some of them have what windows need.
        """
        pins = self.spelled(self.cache._pins._tree)
        sources = [
            [(s, pages) for k, s, pages in kept if k == whose]
            for kept, whose in ((self.spelled(self.cache._tree), key), (pins, key), (pins, None))
        ]
        raw = [max((common(s, tokens, most) for s, _ in kept), default=0) for kept in sources]
        everything = [each for kept in sources for each in kept]
        surely = perhaps = 0
        for length in range(max(raw) + 1):
            whole, over = divmod(length, self.size)
            if over and length not in raw:
                continue
            pages = [(group, i) for group in self.gs() for i in range(self.begin(group, length), whole)]
            if not all(self.there(group, i, tokens, everything) for group, i in pages):
                continue
            rests = [[pages for s, pages in kept if self.covers(s, tokens, length)] for kept in sources]
            rests = [rest for rest, end in zip(rests, raw, strict=True) if end == length and rest]
            needs = [group for group in self.gs() if over and self.begin(group, length) <= whole]
            has = [[all(pages[group] != HOLE for group in needs) for pages in rest] for rest in rests]
            if not over or any(map(any, has)):
                perhaps = length
            if not over or any(map(all, has)):
                surely = length
        return surely, perhaps

    def gs(self):
        return [group for group, window in enumerate(self.windows) if window is not None]

    def there(self, group, index, tokens, kept):
        string = tokens[: (index + 1) * self.size]
        return any(s == string and pages[group] != HOLE for s, pages in kept)

    def covers(self, string, tokens, length):
        return string[:length] == tokens[:length] and (len(string) - 1) // self.size == length // self.size

    def least(self, name):
        """The first position whose window is still there."""
        holes = [table.count(HOLE) for table in self.cache.table(name)]
        return max(h and h * self.size + (w or 1) - 1 for h, w in zip(holes, self.windows, strict=True))

    def begin(self, group, start):
        """The first page that position `start` sees."""
        window = self.windows[group]
        return 0 if window is None else max(0, start - window + 1) // self.size

    def pin_fits(self, group, tokens):
        held = sum(bool(self.cache._pools[group].holds(page)[2]) for page in range(self.pages[group]))
        window, reserve = self.windows[group], -(-self.reserve // self.size)
        if window is not None:
            reserve = min(reserve, -(-(window - 1 + MOST) // self.size) + 1)
        whole = -(-tokens // self.size)
        return held + whole - self.begin(group, tokens // self.size * self.size) + reserve <= self.pages[group]


def common(a, b, most):
    same = 0
    while same < min(len(a), len(b), most) and a[same] == b[same]:
        same += 1
    return same
