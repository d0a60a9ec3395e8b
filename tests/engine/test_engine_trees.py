"""Trees of drafts in the control room: which pages their paths have, which stay, and what is said of them."""

from __future__ import annotations

import random
from itertools import count

import pytest

from pagoda.engine.request import RequestState
from pagoda.engine.speculation import Controller
from pagoda.engine.speculation.drafter import Guess
from pagoda.plan import LAST, Chunk, tree_paths
from pagoda.types import FinishReason
from trees import TreeDrafter, leaf_paths, random_tree

from .fakes import STOP, VOCABULARY, capacity, expected, grove, request
from .test_engine_traffic import Ask, Traffic


def played(asks: list[Ask], **options) -> Traffic:
    traffic = Traffic(asks, **{"pages": (64,), "chunk": 64, "max_num_seqs": 8, "drafters": (grove,), **options})
    traffic.play()
    traffic.compare()
    return traffic


def tally(traffic: Traffic):
    (drafter,) = traffic.drafts.drafters
    return drafter


def chunks(traffic: Traffic) -> list[Chunk]:
    return [chunk for plan in traffic.runner.plans for chunk in plan.chunks if chunk.paths]


ALONE = [Ask((1, 2, 3), 40, seed=4, ignore_eos=True)]
MIXED = [Ask((1, 2, 3, i), 12 + i, n=1 + i % 2, seed=i, ignore_eos=True) for i in range(5)]


@pytest.mark.parametrize("page_size", [1, 2, 4, 16])
@pytest.mark.parametrize("asks", [ALONE, MIXED], ids=["alone", "mixed"])
def test_a_tree_gives_the_tokens_of_plain_decoding(asks: list[Ask], page_size: int) -> None:
    traffic = played(asks, page_size=page_size, pages=(400,))
    assert tally(traffic).whole > 5
    assert tally(traffic).right > 5
    assert len(chunks(traffic)) > 3
    steps = len(traffic.runner.plans)
    assert steps < sum(ask.max_tokens for ask in asks), "right drafts save steps"


def test_accepted_and_rejected_nodes_are_counted() -> None:
    """Rejected are all nodes of a tree but those of the right path."""
    traffic = played(ALONE)
    (events,) = traffic.events.values()
    final = events[-1]
    assert final.accepted_drafts == tally(traffic).right
    assert final.accepted_drafts + final.rejected_drafts == sum(plan.drafts for plan in traffic.runner.plans)
    assert final.accepted_drafts > 5
    assert final.rejected_drafts > 20


def test_without_pages_for_them_paths_are_left_out() -> None:
    """Nobody loses a page for a guess: of a tree its first path is drafted, or nothing."""
    traffic = played(MIXED, pages=(24,), page_size=2)
    assert tally(traffic).cut > 3


@pytest.mark.parametrize("pages", [(9,), (12, 10)])
def test_under_pressure(pages: tuple[int, ...]) -> None:
    asks = [Ask((1, 2, 3, i), 9, n=2, seed=i) for i in range(6)]
    traffic = played(asks, pages=pages, page_size=4, max_model_len=36)
    assert traffic.observer.preemptions > 0


def test_an_end_inside_a_path() -> None:
    """A stop token, a stop string or the limit may lie on the right path, before its end."""
    ends = set()
    for seed in range(30):
        for ask in (Ask((seed % 7,), 30, seed=seed), Ask((1, seed % 5), 30, seed=seed, stop=("ba", "c"))):
            traffic = played([ask])
            (events,) = traffic.events.values()
            kept = [token for event in events for token in event.token_ids]
            given = sum(len(chunk.tokens) > 0 for plan in traffic.runner.plans for chunk in plan.chunks)
            ends.add((events[-1].finish, kept[-1] == STOP, len(kept) > given))
    assert {(FinishReason.STOP, True, True), (FinishReason.STOP, False, True)} <= ends


def test_a_request_leaves_while_its_tree_is_verified() -> None:
    for after in range(2, 9):
        traffic = Traffic([*ALONE, Ask((5, 6), 40, ignore_eos=True, cancel_after=after)], pages=(200,), chunk=64)
        traffic.drafters = (grove,)
        traffic.play()
        traffic.compare()


def test_only_what_is_verified_may_be_found() -> None:
    """The same prompt and more of its answer, asked again: what is found was written for it (the runner looks)."""
    first = ALONE[0]
    traffic = Traffic([first], pages=(64,), chunk=64, drafters=(grove,), page_size=2)
    traffic.play()
    answer = expected(first.prompt, traffic.requests[0].params, 0)[0]
    for wrong in (False, True):
        line = (*first.prompt, *answer[:30])
        again = (*line[:-1], (line[-1] + 1) % STOP) if wrong else line
        asks = [first, Ask(again, 8, at=60, ignore_eos=True)]
        played(asks, page_size=2, pages=(64,))


def test_a_tree_is_cut_where_it_does_not_pay() -> None:
    """The likeliest nodes, which are none without those they follow."""
    guess = Guess((1, 2, 3, 4), (0.9, 0.2, 0.5, 0.4), parents=(-1, 0, 0, -1))
    assert guess.likeliest(3) == Guess((1, 3, 4), (0.9, 0.5, 0.4), parents=(-1, 0, -1))
    assert guess.likeliest(1) == Guess((1,), (0.9,), parents=(-1,))
    assert guess.likeliest(4) == guess
    line = Guess((1, 2, 3), (0.9, 0.5, 0.2))
    assert line.likeliest(2) == Guess((1, 2), (0.9, 0.5))


def test_the_controller_weighs_a_tree_by_its_nodes() -> None:
    """Rows are dear from four on: the two likeliest nodes beside the token's own."""

    class Fixed(TreeDrafter):
        def guess(self, sequence, most):
            return Guess((1, 2, 3, 4), (0.9, 0.2, 0.5, 0.4), parents=(-1, 0, 0, -1))

    drafter = Fixed(lambda *_: (), VOCABULARY)
    controller = Controller([drafter])
    for _ in range(8):
        for rows in range(1, 9):
            controller._times.measured(rows, 0.010 if rows <= 3 else 0.1 * rows)
    asked = request(capacity(pages=(400,), max_model_len=400), (1, 2), max_tokens=300)
    (sequence,) = RequestState(asked, lambda _: None, count()).sequences
    sequence.output, sequence.computed, sequence.holds_pages = [3], 2, True
    controller.open([sequence], 16, alone=True)
    whose, guess = controller.draft(sequence)
    assert (whose, guess) == ("tree", Guess((1, 3), (0.9, 0.5), parents=(-1, 0)))


BAD = {
    "none for one": ((5, 6), (-1,), 0),
    "itself": ((5, 6), (-1, 1), 0),
    "a later one": ((5, 6, 7), (-1, 2, 0), 1),
    "less than none": ((5,), (-2,), 0),
    "not depth first": ((5, 6, 7), (-1, -1, 0), 2),
    "twins": ((5, 5), (-1, -1), 1),
    "no table for a path": ((5, 6), (-1, -1), 0),
    "a table too many": ((5, 6), (-1, 0), 1),
    "tables without parents": ((5, 6), (), 1),
    "nobody's guess": ((5, -2), (-1, -1), 1),
}


@pytest.mark.parametrize("what", BAD)
def test_bad_parents_are_refused(what: str) -> None:
    drafts, parents, paths = BAD[what]
    with pytest.raises(ValueError, match=r"draft|tree"):
        Chunk(0, 3, (LAST, *drafts), ((0, 1),), True, len(drafts), "tree", parents, (((0, 2),),) * paths)


def test_the_paths_of_random_trees() -> None:
    """Against brute force: each path, from where it leaves another, and which path a result lies on."""
    rng = random.Random(0)
    for _ in range(300):
        line = [rng.randrange(9) for _ in range(5)]
        right = rng.randint(0, 5)
        tokens, parents = random_tree(rng, line, 14, 9, right)
        paths, whole = tree_paths(parents), leaf_paths(parents)
        assert [path.end - 1 for path in paths] == [leaf[-1] for leaf in whole]
        for number, (path, leaf) in enumerate(zip(paths, whole, strict=True)):
            own = list(range(path.first, path.end))
            assert leaf[path.depth - 1 :] == own
            assert path.end_depth == len(leaf)
            assert path.parent == parents[path.first]
            assert path.leaves <= max(number - 1, 0)
            assert whole[path.leaves][: path.depth - 1] == leaf[: path.depth - 1]
        if not tokens:
            continue
        tables = (((1,),),) * (len(paths) - 1)
        chunk = Chunk(0, 3, (LAST, *tokens), ((0,),), True, len(tokens), "tree", parents, tables)
        number = chunk.path([*line[:right], 99])
        nodes = [tokens[draft] for draft in whole[number]]
        assert nodes[:right] == line[:right]
        assert number == min(i for i, leaf in enumerate(whole) if [tokens[d] for d in leaf][:right] == line[:right])
