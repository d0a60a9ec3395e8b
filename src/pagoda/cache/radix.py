"""`RadixTree`: which prefixes are kept, and in which pages. Exact to the token; integers only.

An edge never crosses a page's end, so a node either ends a page, or ends inside one: as a leaf (a tail: a page filled
in part) or where prefixes part. The latter has no page of its own: the pages below it all begin with its tokens, and
any of them serves to copy from. Knows neither sequences nor which prefix is worth keeping (`eviction`).

Radix trees over tokens after Zheng et al. 2024, "SGLang" (RadixAttention); ends inside a page are ours.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass

from pagoda.cache.groups import HOLE, Pages

Key = Hashable
"""Prefixes of different keys never meet: the tenant's name."""
AHEAD = 8
"""Tokens that are told of what is kept instead, where a match ends."""


class Node:
    """The end of an edge."""

    __slots__ = ("children", "digest", "found", "name", "pages", "parent", "pins", "queued", "start", "tokens", "used")

    def __init__(self, parent: Node | None, start: int, tokens: tuple[int, ...], pages: Pages | None) -> None:
        self.parent = parent
        """None: the root, or no longer in the tree."""
        self.start = start
        """Absolute position of the edge's first token."""
        self.tokens = tokens
        """The edge's."""
        self.pages = pages
        """Hold the tokens from their first slot to this node's end; None where prefixes part inside a page. Groups with
        a window may have a hole."""
        self.children: dict[int, Node] = {}
        """By their edge's first token."""
        self.digest = 0
        """At a page's end: hash of all tokens from the root."""
        self.name = b""
        """At a page's end: its name on disk, once somebody asked for it (`disk`)."""
        self.used = 0
        """When it was last used, by the clock of `eviction`."""
        self.queued = False
        """Whether it is in the heap of `eviction`."""
        self.found = False
        """Whether something parted from it, or was found up to it, within a window (`fading`)."""
        self.pins = 0
        """Pins that go through it."""

    @property
    def end(self) -> int:
        """Absolute position after the edge's last token."""
        return self.start + len(self.tokens)


class Root(Node):
    """Where the prefixes of one key begin."""

    __slots__ = ("key",)

    def __init__(self, key: Key) -> None:
        super().__init__(None, 0, (), None)
        self.key = key


@dataclass(frozen=True, slots=True)
class Found:
    """The longest prefix that a tree has."""

    length: int = 0
    """In tokens."""
    nodes: tuple[Node, ...] = ()
    """Of whole pages, in order."""
    partial: Node | None = None
    """A page whose first slots hold the tokens after them."""
    differs: bool = False
    """Whether the tree goes on here, but with another token."""
    ahead: tuple[int, ...] = ()
    """If so, the first tokens with which it goes on, where it was used last."""


class RadixTree:
    """Prefixes by key. Every operation costs as much as its tokens are many, however many prefixes there are.

    Args:
        page_size: token slots of a page.
        hold: a node takes hold of pages.
        drop: a node gives pages up.
        on_leaf: a node with pages has no children (any more).
    """

    def __init__(
        self,
        page_size: int,
        hold: Callable[[Pages], None],
        drop: Callable[[Pages], None],
        on_leaf: Callable[[Node], None] = lambda _: None,
    ) -> None:
        self.page_size = page_size
        self._hold = hold
        self._drop = drop
        self._on_leaf = on_leaf
        self._roots: dict[Key, Root] = {}
        self._digests: Counter[int] = Counter()
        self.nodes = 0
        """Of all keys, roots not counted."""

    def match(self, key: Key, tokens: tuple[int, ...], most: int) -> Found:
        """The longest prefix of `tokens`, up to `most` of them, that is kept under the key."""
        root = self._roots.get(key)
        if root is None:
            return Found()
        node: Node = root
        at, nodes, ahead = 0, [], tuple[int, ...]()
        while at < most:
            child = node.children.get(tokens[at])
            if child is None:
                break
            node, end = child, at + len(child.tokens)
            if end > most or child.tokens != tokens[at:end]:
                same = _agree(child.tokens, tokens, at, most)
                at, ahead = at + same, child.tokens[same:]
                break
            at = end
            if child.pages is not None and not at % self.page_size:
                nodes.append(child)
        partial = None
        if at % self.page_size:
            partial = node
            while partial.pages is None:  # any of them will do; of the latest, windows are there the longest
                partial = next(reversed(partial.children.values()))
        differs = at < most and bool(ahead or node.children)
        return Found(at, tuple(nodes), partial, differs, _ahead(node, ahead) if differs else ())

    def insert(self, key: Key, parent: Node | None, tokens: tuple[int, ...], pages: Pages) -> tuple[Node, bool]:
        """Keep one page, or the first slots of one, after a node at a page's end (None: at the root).

        Returns:
            The node that has these tokens, and whether it is new. If not, it was there before: its pages hold the same.
        """
        if parent is None:
            parent = self._roots.get(key) or self._roots.setdefault(key, Root(key))
        node, done = parent, 0
        while done < len(tokens):
            child = node.children.get(tokens[done])
            if child is None:
                break
            same = _agree(child.tokens, tokens, done, len(tokens))
            done += same
            if same < len(child.tokens):
                node = child if done == len(tokens) else self._split(child, same)
                break
            node = child
            if node.pages is not None and done < len(tokens):  # a tail, and the new page goes on from it
                return self._prolong(node, parent, tokens, done, pages), True
        if done == len(tokens):
            while node.pages is None:
                node = next(iter(node.children.values()))
            return node, False
        return self._add(node, parent, tokens, done, pages), True

    def remove(self, node: Node) -> None:
        """Forget a node and all below it."""
        for gone in [node, *self.below(node)]:
            if gone.pages is not None:
                self._drop(gone.pages)
                self._forget_digest(gone)
            if gone is not node:
                gone.parent = None
                self.nodes -= 1
            gone.children = {}
        self._detach(node)

    def fill(self, node: Node, pages: Pages) -> None:
        """Put pages of the same tokens where the node's have holes."""
        assert node.pages is not None, "a node without pages is filled"
        if HOLE in node.pages:
            more = tuple(new if old == HOLE else HOLE for old, new in zip(node.pages, pages, strict=True))
            self._hold(more)
            node.pages = tuple(map(max, node.pages, more))

    def strip(self, node: Node, group: int) -> None:
        """Give up a node's page of one group: there is a hole now."""
        assert node.pages is not None, "a node without pages is stripped"
        gone = tuple(page if index == group else HOLE for index, page in enumerate(node.pages))
        node.pages = tuple(HOLE if index == group else page for index, page in enumerate(node.pages))
        self._drop(gone)

    def holds_elsewhere(self, digest: int, tokens: tuple[int, ...]) -> bool:
        """Whether some key has a page of these tokens after a prefix of this digest."""
        return hash((digest, tokens)) in self._digests

    def below(self, node: Node) -> Iterator[Node]:
        """All nodes under a node."""
        stack = list(node.children.values())
        while stack:
            node = stack.pop()
            yield node
            stack.extend(node.children.values())

    def all(self) -> Iterator[Node]:
        """Every node, roots left out."""
        for root in self._roots.values():
            yield from self.below(root)

    def key_of(self, node: Node) -> Key:
        """Under which key a node is."""
        while node.parent is not None:
            node = node.parent
        assert isinstance(node, Root), "a node outside the tree"
        return node.key

    def page_tokens(self, node: Node) -> tuple[int, ...]:
        """The tokens from the first slot of its page to the node's end."""
        tokens, up = node.tokens, node
        while up.start % self.page_size:
            assert up.parent is not None, "a node outside the tree"
            up = up.parent
            tokens = up.tokens + tokens
        return tokens

    def before(self, node: Node) -> Node:
        """The node, or root, at whose end the node's page begins."""
        up = node
        while up.start % self.page_size:
            assert up.parent is not None, "a node outside the tree"
            up = up.parent
        assert up.parent is not None, "a node outside the tree"
        return up.parent

    def digest_before(self, node: Node) -> int:
        """The digest at the first slot of the node's page."""
        return self.before(node).digest

    def whole(self, node: Node) -> bool:
        """Whether it ends a page."""
        return node.pages is not None and not node.end % self.page_size

    def check(self) -> None:
        """Assert the tree's shape: edges within pages, pages where they must be, no node that could be merged."""
        count, digests = 0, Counter[int]()
        for root in self._roots.values():
            assert root.children, "a root without prefixes is kept"
        for node in self.all():
            count += 1
            parent, size = node.parent, self.page_size
            assert parent is not None
            assert parent.children[node.tokens[0]] is node, "a child under the wrong token"
            assert parent.end == node.start, "positions do not follow"
            assert node.start // size == (node.end - 1) // size, "an edge crosses a page's end"
            if node.pages is None:
                assert node.end % size, "a page's end without a page"
                assert len(node.children) > 1, "a node that parts nothing"
            elif node.end % size:
                assert not node.children, "something follows on a tail"
            else:
                assert node.digest == hash((self.digest_before(node), self.page_tokens(node))), "a wrong digest"
                digests[node.digest] += 1
        assert count == self.nodes, f"{self.nodes} nodes are counted, {count} are there"
        assert digests == self._digests, "digests are miscounted"

    def _add(self, node: Node, parent: Node, tokens: tuple[int, ...], done: int, pages: Pages) -> Node:
        new = Node(node, parent.end + done, tokens[done:], pages)
        node.children[tokens[done]] = new
        self.nodes += 1
        self._hold(pages)
        self._end_page(new, parent, tokens)
        self._on_leaf(new)
        return new

    def _prolong(self, tail: Node, parent: Node, tokens: tuple[int, ...], done: int, pages: Pages) -> Node:
        """A tail's page gives way to one that holds more."""
        assert tail.pages is not None
        self._hold(pages)
        self._drop(tail.pages)
        tail.tokens += tokens[done:]
        tail.pages = pages
        self._end_page(tail, parent, tokens)
        return tail

    def _end_page(self, node: Node, parent: Node, tokens: tuple[int, ...]) -> None:
        if len(tokens) == self.page_size:
            node.digest = hash((parent.digest, tokens))
            self._digests[node.digest] += 1

    def _forget_digest(self, node: Node) -> None:
        if not node.end % self.page_size:
            self._digests[node.digest] -= 1
            if not self._digests[node.digest]:
                del self._digests[node.digest]

    def _split(self, child: Node, same: int) -> Node:
        """Part an edge after so many tokens; the lower part stays the same object."""
        parent = child.parent
        assert parent is not None
        upper = Node(parent, child.start, child.tokens[:same], None)
        parent.children[child.tokens[0]] = upper
        child.tokens, child.start, child.parent = child.tokens[same:], child.start + same, upper
        upper.children[child.tokens[0]] = child
        self.nodes += 1
        return upper

    def _detach(self, node: Node) -> None:
        """Take a childless node off its parent, and tidy up there."""
        parent = node.parent
        assert parent is not None, "a node is removed twice"
        del parent.children[node.tokens[0]]
        node.parent = None
        self.nodes -= 1
        if isinstance(parent, Root):
            if not parent.children:
                del self._roots[parent.key]
        elif parent.pages is not None:
            if not parent.children:
                self._on_leaf(parent)
        elif len(parent.children) == 1:
            self._merge(parent)

    def _merge(self, upper: Node) -> None:
        """Undo a split: nothing parts there any more."""
        (child,) = upper.children.values()
        above = upper.parent
        assert above is not None
        child.tokens, child.start, child.parent = upper.tokens + child.tokens, upper.start, above
        above.children[child.tokens[0]] = child
        upper.parent = None
        self.nodes -= 1


def _ahead(node: Node, tokens: tuple[int, ...]) -> tuple[int, ...]:
    """The rest of a node's edge and what follows, each time where it was used last; `AHEAD` tokens at most."""
    while len(tokens) < AHEAD and node.children:
        node = max(node.children.values(), key=lambda child: child.used)
        tokens += node.tokens
    return tokens[:AHEAD]


def _agree(edge: tuple[int, ...], tokens: tuple[int, ...], at: int, most: int) -> int:
    """How many of an edge's tokens are those from `at` on, below `most`."""
    same, most = 0, min(len(edge), most - at)
    while same < most and edge[same] == tokens[at + same]:
        same += 1
    return same
