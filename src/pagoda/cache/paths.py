"""The paths of a speculation tree beside a sequence's own: pages for other tokens at the same positions.

Knows page tables and counts; that a tree is being verified is the engine's affair. A path's first own page is a copy,
as a fork's is when it is written to, so that whoever reads positions in order finds all of a path's in one page table.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pagoda.cache.groups import HOLE
from pagoda.cache.pool import PagePool
from pagoda.cache.tables import Held, Path
from pagoda.plan import PageCopy


@dataclass(frozen=True, slots=True)
class PathStart:
    """A path beside a sequence's own, to be opened (`KVCache.open_paths`)."""

    leaves: int
    """Number of the path that it leaves; 0: the sequence's own."""
    at: int
    """The first position that is not that path's too."""
    upto: int
    """One past its last position."""


def open_path(
    pools: Sequence[PagePool], held: Held, path: PathStart, start: int, page_size: int, copies: list[PageCopy]
) -> Path:
    """Take pages for one path, of those that are free; its first page's slots before `start` are to be copied."""
    first, last = path.at // page_size, -(-path.upto // page_size)
    slots, base = max(start - first * page_size, 0), first
    if path.leaves:
        base = min(held.paths[path.leaves - 1].base, first)
    tables = []
    for group, (pool, along) in enumerate(zip(pools, held.along(path.leaves), strict=True)):
        own = [pool.take() for _ in range(last - first)]
        tables.append((*along[base:first], *own))
        if slots:
            copies.append(PageCopy(group, held.tables[group][first], own[0], slots))
    return Path(base, first, tuple(tables), path.upto)


def close_paths(pools: Sequence[PagePool], held: Held, path: int) -> None:
    """One path becomes the sequence's own, and the pages that only others have are given back."""
    if not held.paths:
        assert not path, f"path {path} of a sequence that has none"
        return
    tables = held.along(path)
    if path:
        held.slots = held.paths[path - 1].upto
    base = min(each.base for each in held.paths)
    for group, (pool, old) in enumerate(zip(pools, held.tables, strict=True)):
        kept = set(tables[group][base:])
        for page in (*old[base:], *(page for each in held.paths for page in each.own[group])):
            if page not in kept:
                pool.drop(page)
    held.tables, held.paths = tables, []


def check_paths(held: Held, page_size: int) -> None:
    """Assert that paths leave only what is not in the tree of prefixes, and that tables cover their slots."""
    for number, path in enumerate(held.paths, 1):
        assert len(held.path) <= path.base <= path.first, f"{path} leaves pages that others may find"
        for table in held.along(number):
            assert len(table) == -(-path.upto // page_size), f"path {number}: table does not match its slots"
            pages = [page for page in table if page != HOLE]
            assert len(set(pages)) == len(pages), f"path {number} holds a page twice"
