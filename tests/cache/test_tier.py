"""What stays on disk when the budget is spent, and when reading pays."""

from __future__ import annotations

import random
from itertools import pairwise

from pagoda.cache.tier import AGAIN, BLOCK, Tier


def name(i: int) -> bytes:
    return i.to_bytes(20, "big")


def chain(tier: Tier, names, size=BLOCK):
    """Write the pages of a prefix; what had to go."""
    gone = []
    for before, each in pairwise([b"", *names]):
        fits, out = tier.begin(each, before, size)
        gone += out
        assert fits
        tier.written(each)
        tier.check()
    return gone


def test_a_prefix_goes_from_its_end():
    tier = Tier(4 * BLOCK)
    first, second = [name(i) for i in (1, 2, 3)], [name(i) for i in (7, 8)]
    chain(tier, first)
    assert chain(tier, second) == [first[2]]
    assert tier.run(first) == 2
    tier.touch(second)
    tier.touch(first[:2])
    assert tier.begin(name(9), b"", BLOCK) == (True, [second[1]])


def test_what_is_read_or_pinned_or_being_written_stays():
    tier = Tier(3 * BLOCK)
    chain(tier, [name(1)])
    chain(tier, [name(2)])
    assert tier.begin(name(3), b"", BLOCK) == (True, [])
    tier.hold(name(1))
    tier.protect([name(2)])
    assert tier.begin(name(4), b"", BLOCK) == (False, [])
    tier.let_go(name(1))
    assert tier.begin(name(4), b"", BLOCK) == (True, [name(1)])
    tier.expose([name(2)])
    tier.check()
    assert tier.begin(name(5), b"", BLOCK) == (True, [name(2)])


def test_a_page_larger_than_all_drives_nothing_out():
    tier = Tier(2 * BLOCK)
    chain(tier, [name(1)])
    assert tier.begin(name(2), b"", 3 * BLOCK) == (False, [])


def test_strange_files_go_first_and_are_overwritten():
    tier = Tier(3 * BLOCK)
    tier.found(name(1), b"", 10)
    tier.strange(name(2), 10)
    tier.strange(name(3), 10)
    assert tier.run([name(2)]) == 0
    assert name(3) not in tier
    assert tier.begin(name(3), b"", BLOCK) == (True, [])
    assert tier.begin(name(4), b"", BLOCK) == (True, [name(2)])
    tier.check()


def test_a_smaller_budget_is_kept_from_the_start():
    tier = Tier(2 * BLOCK)
    for i in range(5):
        tier.found(name(i), name(i - 1) if i else b"", BLOCK)
    assert tier.trim() == [name(4), name(3), name(2)]
    tier.check()
    assert tier.run([name(0), name(1), name(2)]) == 2


def test_it_is_measured_whether_reading_pays():
    tier = Tier(BLOCK)
    assert tier.pays(100, 0), "nothing is measured yet: it is tried"
    tier.reading.add(16, 16 * 0.001)
    assert tier.pays(100, 0)
    tier.computing = 0.002
    assert tier.pays(100, 0)
    assert not tier.pays(100, 150), "others are read first"
    tier.copying.add(16, 16 * 0.002)
    assert abs(tier.restoring - 0.003) < 1e-12
    assert [tier.pays(100, 0) for _ in range(3 * AGAIN)].count(True) == 3, "now and then it is tried again"
    for _ in range(60):
        tier.reading.add(16, 16 * 0.0001)
        tier.copying.add(16, 16 * 0.0001)
    assert tier.pays(100, 0)


def test_counts_hold_whatever_happens():
    generator = random.Random(5)
    tier, kept, writing, held = Tier(20 * BLOCK), set(), set(), []
    for _ in range(4000):
        each, what = name(generator.randint(1, 60)), generator.randint(0, 6)
        if what < 2 and each not in tier:
            fits, gone = tier.begin(each, name(generator.randint(1, 60)), generator.randint(1, 2 * BLOCK))
            assert not set(gone) & (writing | set(held))
            kept -= set(gone)
            writing |= {each} if fits else set()
        elif what == 2 and writing:
            done = writing.pop()
            tier.written(done)
            kept.add(done)
        elif what == 3 and kept:
            held.append(generator.choice(sorted(kept)))
            tier.hold(held[-1])
        elif what == 4 and held:
            tier.let_go(held.pop())
        elif what == 5:
            tier.touch([each, name(generator.randint(1, 60))])
        elif what == 6 and kept - set(held):
            gone = generator.choice(sorted(kept - set(held)))
            tier.lost(gone)
            kept.remove(gone)
        tier.check()
        assert {n for n in map(name, range(1, 61)) if tier.run([n])} == kept
