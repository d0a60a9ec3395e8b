"""Groups with a window, case by case: what is given back and when, where a match may end, and what goes first."""

from __future__ import annotations

import pytest

from pagoda.cache import Extension, KVCache
from pagoda.cache.groups import HOLE, Groups
from pagoda.plan import most_pages
from pagoda.types import CacheCause


def computed(cache: KVCache, name: int, tokens: tuple[int, ...], chunk: int, key: str = "") -> None:
    """As the engine does it: chunk by chunk, committed and slid."""
    at = cache.admit(name, (*tokens, -1), key).length
    while at < len(tokens):
        upto = min(at + chunk, len(tokens))
        assert cache.extend(name, at, upto).fits
        cache.commit(name, tokens[at:upto])
        cache.slide(name)
        at = upto


def held(cache: KVCache, name: int) -> list[int]:
    return [len(table) - table.count(HOLE) for table in cache.table(name)]


@pytest.mark.parametrize("prefixes", [True, False])
@pytest.mark.parametrize("window", [1, 3, 4, 5, 9])
@pytest.mark.parametrize("chunk", [1, 3, 4, 11])
def test_a_sequence_holds_a_window(window: int, chunk: int, prefixes: bool) -> None:
    """A pool of what one sequence needs at most is enough for any length, and for what its rows see."""
    few = most_pages(window, 40, chunk, 2)
    cache = KVCache((20, few), 2, prefixes, windows=(None, window), chunk=chunk)
    cache.admit(0, (1,))
    for start in range(0, 40, chunk):
        upto = min(start + chunk, 40)
        assert cache.extend(0, start, upto).fits
        table = cache.table(0)[1]
        seen = range(max(start - window + 1, 0) // 2, -(-upto // 2))
        assert [index for index, page in enumerate(table) if page != HOLE] == list(seen)
        cache.commit(0, (5,) * (upto - start))
        cache.slide(0)
        cache.check()
    assert held(cache, 0) == [20, 20 - (40 - window + 1) // 2]


def test_rejected_drafts_cost_no_page_that_is_needed() -> None:
    """Eight drafts go far past the window; all are wrong; the next row still sees all of its own."""
    cache = KVCache((20, 12), 2, windows=(None, 4), chunk=9)
    computed(cache, 0, (1,) * 10, 5)
    assert cache.extend(0, 10, 19).fits
    before = cache.table(0)[1][3:6]
    assert cache.extend(0, 11, 12).fits
    assert cache.table(0)[1][4:6] == before[1:]
    assert HOLE not in cache.table(0)[1][(11 - 3) // 2 :]
    cache.check()


def test_a_match_ends_where_a_whole_window_is_kept() -> None:
    """Twelve tokens are kept, in four pages of the window's group: those before positions 5 to 12."""
    cache = KVCache((20, 4), 2, windows=(None, 4), chunk=2)
    text = tuple(range(1, 13))
    computed(cache, 0, text, 2)
    cache.release(0)
    assert cache.match("", (*text, 0)).length == 12
    found = cache.match("", (*text[:8], 0))
    assert (found.length, found.cause) == (8, CacheCause.WHOLE)
    found = cache.match("", (*text[:6], 0, 0))
    assert (found.length, found.cause) == (0, CacheCause.EVICTED), "pages 0 and 1 are gone, and position 6 sees page 1"
    found = cache.match("", (*text[:2], 99, 98))
    assert (found.length, found.cause) == (0, CacheCause.EVICTED)


def test_what_is_computed_again_fills_the_holes() -> None:
    cache = KVCache((30, 8), 2, windows=(None, 4), chunk=2)
    text = tuple(range(1, 21))
    computed(cache, 0, text, 2)
    cache.release(0)
    prompt = (*text[:6], 50, 51, 52)
    assert cache.match("", (*prompt, 0)).length == 0
    computed(cache, 1, prompt, 2)
    assert cache.table(1)[0][:3] == tuple(node.pages[0] for node in cache.match("", (*text[:6], 0)).own if node.pages)
    cache.release(1)
    cache.check()
    assert cache.match("", (*prompt, 0)).length == 9
    assert cache.match("", (*text[:6], 60, 0)).length == 6, "and whoever parts there too is found"


def test_a_long_prompt_costs_others_nothing() -> None:
    """Eight pages of a window's group: two ends of three pages stay, though a prompt of forty pages passes."""
    cache = KVCache((80, 9), 2, windows=(None, 4), chunk=2)
    for name, first in enumerate((100, 200)):
        computed(cache, name, tuple(range(first, first + 6)), 2)
        cache.release(name)
    computed(cache, 9, tuple(range(1000, 1080)), 2)
    cache.release(9)
    cache.check()
    for first in (100, 200):
        assert cache.match("", (*range(first, first + 6), 0)).length == 6
    assert cache.match("", (*range(1000, 1080), 0)).length == 80


def test_a_fork_needs_what_it_would_see() -> None:
    cache = KVCache((20, 20), 2, windows=(None, 4), chunk=4)
    computed(cache, 0, (1,) * 8, 4)
    assert cache.forks(0, 8)
    assert cache.forks(0, 7)
    assert not cache.forks(0, 3)
    cache.fork(0, 1, 8)
    assert cache.table(1)[1][:2] == (HOLE, HOLE)
    copies = [cache.extend(name, 8, 9).copies for name in (0, 1)]
    assert copies == [(), ()], "position 8 begins a page"
    cache.release(0)
    cache.check()
    with pytest.raises(AssertionError, match="was given back"):
        cache.fork(1, 2, 3)


def test_a_group_with_a_window_can_be_the_one_that_is_short() -> None:
    cache = KVCache((20, 3), 2, windows=(None, 4), chunk=4)
    cache.admit(0, (1,))
    assert cache.extend(0, 0, 4).fits
    cache.admit(1, (1,))
    assert cache.extend(1, 0, 4) == Extension(False, lack=1, group=1)
    assert cache.alone(0, 1) == 2
    assert cache.extend(1, 0, 2).fits
    cache.check()


def test_admission_counts_windows() -> None:
    """A prompt of 40 tokens takes 20 pages of the first group, of the other a window's and a chunk's."""
    cache = KVCache((30, 12), 2, windows=(None, 4), chunk=6)
    match = cache.match("", (7,) * 40)
    assert cache.wanted(match, 40) == (20, 6)
    assert cache.wanted_by_fork(8, 40) == (16, 4)
    assert cache.has([(20, 6), (10, 6)], 0)
    assert not cache.has([(20, 6), (10, 6)], 1)
    cache.admit(0, (7,) * 40)
    assert cache.extend(0, 0, 6).fits
    assert cache.owed(0, 40) == (17, 3)


def test_windows_are_told_for_all_groups() -> None:
    with pytest.raises(AssertionError, match="first group keeps everything"):
        Groups((4, 4), 2, (4, None))
    with pytest.raises(AssertionError, match="for each group"):
        Groups((4, 4), 2, (None,))


def test_a_page_may_be_shared_in_one_group_only() -> None:
    """A fork's page of the first group is its own once its parent took the tree's; the window's, which the tree took
    from the parent, is not: it is split before it is written to.
    """
    cache = KVCache((20, 20), 2, windows=(None, 2), chunk=2)
    text = (1, 2, 3, 4)
    computed(cache, 0, (*text, 5, 6), 2)
    cache.release(0)
    while cache._fading.strip(cache.tree, 1):  # the tree has the prefix, and no windows of it
        pass
    cache.admit(1, (*text, 0))
    assert cache.extend(1, 0, 4).fits
    cache.fork(1, 2, 3)
    cache.commit(1, text)
    (mine, windows), (first, other) = cache.table(2), cache.table(1)
    assert (mine[1] == first[1], windows[1] == other[1]) == (False, True)
    assert len(cache.extend(2, 3, 4).copies) == 1
    assert cache.table(2)[1][1] != other[1]
    cache.check()
