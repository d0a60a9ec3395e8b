"""The cache's verbs one by one: the cases that the machine would take long to name."""

from __future__ import annotations

import pytest

from pagoda.cache import Extension, KVCache, PagePool
from pagoda.plan import PageCopy


def test_pool_gives_each_page_once_and_takes_it_back_when_nobody_holds_it():
    pool = PagePool(3)
    assert [pool.take() for _ in range(3)] == [0, 1, 2]
    assert pool.free == 0
    pool.share(1)
    pool.drop(1)
    assert pool.free == 0
    assert not pool.shared(1)
    pool.drop(1)
    assert pool.take() == 1
    pool.check({0: 1, 1: 1, 2: 1}, {}, {})


def test_pool_check_sees_a_wrong_count():
    pool = PagePool(2)
    page = pool.take()
    with pytest.raises(
        AssertionError, match=r"counts \(1, 0, 0\) holds by tables, nodes and pins, and there are \(2, 0, 0\)"
    ):
        pool.check({page: 2}, {}, {})
    with pytest.raises(AssertionError, match="no table holds it"):
        pool.drop(1)


def test_a_table_covers_what_was_asked_for_and_is_the_same_object_meanwhile():
    cache = KVCache([8], page_size=4)
    assert cache.admit(7, (1, 2, 3)).length == 0
    assert cache.extend(7, 0, 3) == Extension(True)
    table = cache.table(7)
    assert cache.extend(7, 3, 4) == Extension(True)
    assert cache.table(7) is table
    assert cache.extend(7, 4, 5) == Extension(True)
    assert cache.table(7) == (table[0] + (1,),)


def test_the_next_slot_is_there_unless_a_page_is_wanted_or_shared():
    cache = KVCache([8], page_size=4)
    cache.admit(0, (1,) * 6)
    cache.extend(0, 0, 6)
    cache.fork(0, 1, at=6)
    assert cache.next_slot(0, 6) is None, "the child holds the page too"
    cache.release(1)
    assert cache.next_slot(0, 5) is None, "it has a slot already"
    assert cache.next_slot(0, 6) is cache.next_slot(0, 7) is cache.table(0)
    assert cache.next_slot(0, 8) is None, "the page is full"
    cache.check()


def test_nothing_changes_when_one_group_of_two_is_short():
    cache = KVCache([8, 2], page_size=2)
    cache.admit(0, (1,))
    assert cache.extend(0, 0, 4).fits
    table = cache.table(0)
    assert cache.extend(0, 4, 5) == Extension(False, lack=1, group=1)
    assert cache.table(0) is table
    assert cache.used == 4
    cache.check()


def test_whoever_writes_first_to_a_shared_page_gets_the_copy():
    cache = KVCache([8], page_size=4)
    cache.admit(0, (1,) * 6)
    cache.extend(0, 0, 6)
    cache.fork(0, 1, at=5)
    assert cache.extend(0, 6, 7).copies == (PageCopy(group=0, source=1, target=2, slots=2),)
    assert cache.extend(1, 5, 6) == Extension(True), "the child holds the page alone now"
    assert cache.table(0) == ((0, 2),)
    assert cache.table(1) == ((0, 1),)
    cache.check()


def test_a_page_written_from_its_first_slot_is_split_without_a_copy():
    cache = KVCache([8], page_size=4)
    cache.admit(0, (1,) * 8)
    cache.extend(0, 0, 8)
    cache.fork(0, 1, at=8)
    assert cache.extend(1, 4, 8) == Extension(True)
    assert cache.table(0) == ((0, 1),)
    assert cache.table(1) == ((0, 2),)
    cache.check()


def test_release_of_a_parent_leaves_the_child_its_pages():
    cache = KVCache([2], page_size=4)
    cache.admit(0, (1,) * 8)
    cache.extend(0, 0, 8)
    cache.fork(0, 1, at=4)
    cache.release(0)
    assert (cache.table(1), cache.available) == (((0,),), (1,))
    cache.release(1)
    assert cache.available == (2,)
    cache.check()


def test_commit_counts_up_and_cannot_pass_the_slots():
    cache = KVCache([2], page_size=4)
    cache.admit(0, (1,) * 8)
    cache.extend(0, 0, 5)
    cache.commit(0, [1] * 5)
    assert cache.committed(0) == 5
    with pytest.raises(AssertionError, match="6 tokens committed, 5 have slots"):
        cache.commit(0, [1])
