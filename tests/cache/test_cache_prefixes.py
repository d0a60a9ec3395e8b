"""Prefixes one by one: the cases that the machine would take long to name."""

from __future__ import annotations

import pytest

from pagoda.cache import Extension, KVCache
from pagoda.cache.eviction import DEAR
from pagoda.plan import PageCopy
from pagoda.types import CacheCause

A = tuple(range(100, 120))


def run(cache, name, tokens, key="", keep=False):
    """A sequence from its admission to its release; returns how much was found."""
    found = cache.admit(name, tokens, key).length
    assert cache.extend(name, found, len(tokens)).fits
    cache.commit(name, tokens[found:])
    if not keep:
        cache.release(name)
    cache.check()
    return found


def test_a_partly_matching_page_is_reused_by_copy():
    cache = KVCache([8], page_size=8)
    run(cache, 0, A[:16])
    match = cache.admit(1, (*A[:11], 1, 2))
    assert (match.length, match.cause) == (11, CacheCause.DIFFERENT)
    assert cache.table(1) == ((0, 1),)
    assert cache.extend(1, 11, 13) == Extension(True, (PageCopy(group=0, source=1, target=2, slots=3),))
    assert cache.table(1) == ((0, 2),)
    cache.check()


def test_a_page_filled_in_part_is_found_once_its_sequence_ends():
    cache = KVCache([8], page_size=8)
    run(cache, 0, A[:11], keep=True)
    assert cache.match("", A[:14]).length == 8, "others write on in that page: it is nobody else's yet"
    cache.release(0)
    assert cache.match("", A[:14]).length == 11


def test_a_page_computed_twice_is_kept_once():
    cache = KVCache([8], page_size=4)
    for name in (0, 1):
        cache.admit(name, A[:8])
        cache.extend(name, 0, 8)
    cache.commit(0, A[:8])
    assert cache.used == 4
    cache.commit(1, A[:8])
    assert cache.used == 2
    assert cache.table(0) == cache.table(1)
    cache.check()


def test_only_what_was_committed_is_found():
    cache = KVCache([8], page_size=4)
    cache.admit(0, A[:8])
    cache.extend(0, 0, 8)
    assert cache.match("", A[:9]).length == 0
    cache.commit(0, A[:6])
    cache.release(0)
    assert cache.match("", A[:9]).length == 6
    cache.check()


def test_the_last_known_token_is_never_found():
    cache = KVCache([8], page_size=4)
    run(cache, 0, A[:8])
    assert [cache.match("", A[:n]).length for n in (1, 4, 5, 8, 9)] == [0, 3, 4, 7, 8]


def test_a_sequence_alone_takes_the_page_it_reads_for_itself():
    """Else it would want one page more than there is, for the copy, and nobody could ever go on."""
    cache = KVCache([2], page_size=4)
    run(cache, 0, A[:8])
    assert cache.admit(1, (*A[:7], 1)).length == 7
    assert cache.extend(1, 7, 8) == Extension(True), "in place"
    assert cache.table(1) == ((0, 1),)
    assert cache.match("", A[:8]).length == 4, "what was written over is forgotten"
    cache.check()


def test_pages_in_use_are_never_evicted():
    cache = KVCache([3], page_size=4)
    run(cache, 0, A[:8], keep=True)
    cache.admit(1, (1,) * 8)
    assert not cache.extend(1, 0, 8).fits
    assert cache.extend(1, 0, 4).fits
    assert cache.match("", A[:9]).length == 8
    cache.release(0)
    assert cache.extend(1, 4, 8).fits
    assert cache.match("", A[:9]).length == 4, "the leaf goes first"
    cache.check()


def test_the_least_recently_used_goes_first():
    cache = KVCache([4], page_size=4)
    for name in range(3):
        run(cache, name, (name,) * 4)
    assert run(cache, 9, (0,) * 5) == 4, "the first is used again; four pages are held"
    run(cache, 10, (7,) * 4)
    assert [cache.match("", (name,) * 5).length for name in range(3)] == [4, 0, 4]


@pytest.mark.parametrize(("position", "survivor"), [(0, "late"), (DEAR, "early")])
def test_what_costs_more_to_recompute_stays_longer(position, survivor):
    """Two leaves, the second used somewhat later: the first stays if it is far down a long prompt."""
    size = 256
    pages = DEAR // size + 4
    cache = KVCache([pages], page_size=size)
    run(cache, 0, (1,) * (position + size))
    run(cache, 1, (2,) * size)
    for name in range(pages - cache.idle + 1):
        run(cache, 10 + name, (10 + name,) * size)
    early = cache.match("", (1,) * (position + size + 1)).length == position + size
    late = cache.match("", (2,) * (size + 1)).length == size
    assert (early, late) == (survivor == "early", survivor == "late")


def test_prefixes_of_other_keys_are_not_found():
    cache = KVCache([8], page_size=4)
    run(cache, 0, A[:8], key="a")
    match = cache.match("b", A[:9])
    assert (match.length, match.cause) == (0, CacheCause.OTHER_KEY)
    assert cache.match("a", A[:9]).length == 8


def test_an_evicted_prefix_is_remembered_for_its_own_key_only():
    cache = KVCache([2], page_size=4)
    run(cache, 0, A[:8], key="a")
    run(cache, 1, (1,) * 8, key="b")
    assert cache.match("a", A[:9]).cause is CacheCause.EVICTED
    assert cache.match("b", A[:9]).cause is CacheCause.DIFFERENT
    assert cache.match("c", A[:9]).cause is CacheCause.NEVER_SEEN


def test_a_pinned_prefix_is_shared_by_keys_and_what_follows_is_not():
    cache = KVCache([8], page_size=4)
    run(cache, 0, A[:6], key="admin")
    info = cache.pin(1, "admin", A[:6], True)
    assert (info.tokens, info.pages) == (6, 2)
    assert run(cache, 2, A[:12], key="a") == 6
    assert cache.match("a", A[:13]).length == 12
    assert cache.match("b", A[:13]).length == 6
    assert cache.unpin(1)
    assert cache.match("b", A[:13]).length == 0
    assert cache.match("a", A[:13]).length == 12, "tenant a has computed it since"
    cache.check()


def test_what_is_not_there_cannot_be_pinned():
    cache = KVCache([8], page_size=4)
    run(cache, 0, A[:6])
    assert cache.pin(1, "", A[:7], True) is None
    assert cache.pin(1, "another", A[:6], True) is None
    assert not cache.unpin(1)


def test_without_prefixes_every_page_is_free_at_the_end():
    cache = KVCache([8], page_size=4, prefixes=False)
    run(cache, 0, A[:8])
    assert (cache.idle, cache.used) == (0, 0)
    assert run(cache, 1, A[:8]) == 0
    assert cache.match("", A).cause is CacheCause.OFF
    assert not cache.pin_fits(1)
