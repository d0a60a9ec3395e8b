"""The controller against a machine whose costs are known: it drafts where that pays, and not where it does not."""

from __future__ import annotations

import random
from collections.abc import Callable
from collections.abc import Sequence as Many
from dataclasses import dataclass, field
from itertools import count
from math import inf

import pytest

from pagoda.engine.request import RequestState, Sequence
from pagoda.engine.speculation import Controller
from pagoda.engine.speculation.drafter import MOST_DRAFTS, NO_GUESS, Guess
from pagoda.engine.speculation.row_times import RowTimes
from pagoda.plan import GUESS, Chunk, StepPlan, StepResult

from .fakes import capacity, request

ids = count()


def sequence(speculate: bool = True) -> Sequence:
    wide = capacity(pages=(4096,), page_size=16, max_model_len=4096)
    asked = request(wide, (1, 2), f"r{next(ids)}", max_tokens=4000, speculate=speculate)
    (made,) = RequestState(asked, lambda _: None, ids).sequences
    made.output, made.computed, made.holds_pages = [3], 2, True
    return made


@dataclass
class Coin:
    """Right with a fixed chance, which it knows or, if `blind`, learns."""

    chance: float
    seconds: float = 0.0
    blind: bool = False
    name: str = "coin"
    believed: float = 0.0
    asked: int = 0

    def __post_init__(self) -> None:
        self.believed = self.believed or self.chance

    def look(self, sequences: Many[Sequence]) -> None:
        pass

    def guess(self, sequence: Sequence, most: int) -> Guess:
        token = GUESS if self.blind else 1
        return Guess((token,) * most, tuple(self.believed ** (i + 1) for i in range(most)))

    def verified(self, sequence: Sequence, asked: int, right: int) -> None:
        self.asked += asked
        for i in range(min(asked, right + 1) if self.blind else 0):
            self.believed += 0.1 * ((i < right) - self.believed)

    def took(self, tokens: int, seconds: float) -> None:
        assert tokens > 0

    def forget(self, sequence: Sequence) -> None:
        pass

    def check(self) -> None:
        assert 0 <= self.believed <= 1


@dataclass
class Machine:
    """Plays steps: their time is a function of rows and guesses."""

    controller: Controller
    drafters: list[Coin]
    cost: Callable[[int], float]
    noise: float = 0.0
    rng: random.Random = field(default_factory=lambda: random.Random(0))
    seconds: float = 0.0
    tokens: int = 0
    drafts: int = 0

    def play(self, sequences: list[Sequence], steps: int, within: float = inf) -> float:
        """The longest step."""
        longest = 0.0
        by_name = {drafter.name: drafter for drafter in self.drafters}
        for number in range(steps):
            self.controller.open(sequences, 512, True, within)
            chunks, guessing = [], 0.0
            for each in sequences:
                name, guess = self.controller.draft(each)
                tokens = guess.tokens
                assert len(tokens) <= MOST_DRAFTS
                chunks.append(Chunk(each.id, 2, (3, *tokens), ((0,),), True, len(tokens), name))
                if name:
                    guessing = max(guessing, by_name[name].seconds * len(tokens))
            plan = StepPlan(number, tuple(chunks))
            taken = self.cost(plan.rows) * self.rng.uniform(1, 1 + self.noise) + guessing
            self.controller.finished(plan, StepResult(number, (), taken, guessing), 0.0, not plan.drafts)
            self.seconds += taken
            longest = max(longest, taken)
            self.drafts += plan.drafts
            for each, chunk in zip(sequences, chunks, strict=True):
                right = 0
                while right < chunk.drafts and self.rng.random() < by_name[chunk.drafter].chance:
                    right += 1
                self.tokens += 1 + right
                if chunk.drafts:
                    self.controller.verified(each, chunk.drafter, chunk.drafts, right)
            self.controller.check()
        return longest

    @property
    def rate(self) -> float:
        return self.tokens / self.seconds


def steep(rows: int) -> float:
    """A row costs nearly as much as the first."""
    return 1 + 0.9 * (rows - 1)


def flat(rows: int) -> float:
    """Rows are nearly free."""
    return 1 + 0.05 * (rows - 1)


def played(coin: Coin, cost: Callable[[int], float], batch: int = 1, steps: int = 400, noise: float = 0.0) -> Machine:
    machine = Machine(Controller([coin]), [coin], cost, noise)
    machine.play([sequence() for _ in range(batch)], steps)
    return machine


def best_fixed(chance: float, cost: Callable[[int], float], guess: float = 0.0) -> float:
    """Tokens per second of one sequence at the best fixed depth."""

    def rate(depth: int) -> float:
        return sum(chance**i for i in range(depth + 1)) / (cost(1 + depth) + guess * depth)

    return max(rate(depth) for depth in range(MOST_DRAFTS + 1))


@pytest.mark.parametrize("chance", [0.1, 0.5, 0.8, 0.95, 0.99])
@pytest.mark.parametrize("cost", [flat, steep, lambda rows: 1 + 0.25 * (rows - 1)])
@pytest.mark.parametrize("noise", [0.0, 0.5])
def test_it_is_as_good_as_the_best_fixed_depth(chance: float, cost: Callable[[int], float], noise: float) -> None:
    machine = played(Coin(chance), cost, steps=3000, noise=noise)
    assert machine.rate * (1 + noise / 2) > 0.95 * best_fixed(chance, cost)


@pytest.mark.parametrize("batch", [1, 4, 16])
def test_what_does_not_pay_is_left_alone(batch: int) -> None:
    """Hardly ever right, and rows cost: after the first step nothing is drafted."""
    machine = played(Coin(0.1), steep, batch)
    assert machine.rate > 0.98 * batch / steep(batch)


@pytest.mark.parametrize("start", [0.05, 0.9])
def test_a_blind_drafter_is_found_out_and_given_chances(start: float) -> None:
    """Whatever is believed at first; a drafter that is bad costs less than a hundredth, one that is good is found."""
    bad = played(Coin(0.05, 0.3, True, believed=start), steep, steps=3000)
    assert bad.rate > 0.98
    good = played(Coin(0.95, 0.02, True, believed=start), flat, steps=3000)
    assert good.rate > 0.9 * best_fixed(0.95, flat, 0.02)


def test_the_better_of_two_drafters_is_taken() -> None:
    good, bad = Coin(0.9, name="good"), Coin(0.3, name="bad")
    machine = Machine(Controller([bad, good]), [bad, good], flat)
    machine.play([sequence()], 300)
    assert good.asked > 50 * bad.asked


def test_the_best_chances_of_all_sequences_are_taken() -> None:
    """Where rows cost, those of one that is sure, and none of one that is not."""

    class Two(Coin):
        def guess(self, sequence: Sequence, most: int) -> Guess:
            chance = 0.99 if sequence is sure else 0.2
            return Guess((1,) * most, tuple(chance ** (i + 1) for i in range(most)))

    sure, unsure = sequence(), sequence()
    machine = Machine(Controller([Two(0.99)]), [Two(0.99)], lambda rows: 1 + 0.5 * (rows - 1))
    machine.play([unsure, sure], 3)
    machine.controller.open([unsure, sure], 512, True)
    assert machine.controller.draft(unsure) == ("", NO_GUESS)
    assert machine.controller.draft(sure)[1].tokens


def test_it_pays_for_all_together_what_does_not_for_one() -> None:
    """Planning after the step costs the same for one draft and for many."""
    costs = {8: 1.0, 9: 1.12, 16: 1.6}
    controller = Controller([Coin(0.9)])
    for rows, seconds in costs.items():
        controller._times.measured(rows, seconds)
    controller._times.gap_waiting = 0.05
    eight = [sequence() for _ in range(8)]
    controller.open(eight[:1], 512, True)
    controller.open(eight, 512, True)
    assert sum(len(controller.draft(who)[1].tokens) for who in eight) >= 8


@pytest.mark.parametrize(("sure", "waits"), [(1.0, False), (0.5, True), (0.02, False)])
def test_it_waits_for_tokens_in_flight_if_they_tell_enough(sure: float, waits: bool) -> None:
    """Where a row costs: not if they are known well enough already, nor if they will hardly be as was guessed."""

    class Ahead(Coin):
        def guess(self, sequence: Sequence, most: int) -> Guess:
            return Guess((1,) * most, tuple(sure * 0.95 ** (i + 1) for i in range(most)), sure)

    controller, who = Controller([Ahead(0.95)]), sequence()
    for rows, seconds in ((1, 1.0), (2, 1.3), (8, 2.5), (16, 4.5)):
        controller._times.measured(rows, seconds)
    assert controller.open([who], 512, True) != waits


def test_promises_that_are_not_kept_are_trusted_less_for_a_while() -> None:
    """It believes in nine of ten, and the coin never comes up."""
    coin = Coin(0.001, believed=0.9)
    machine = Machine(Controller([coin]), [coin], steep)
    machine.play([sequence() for _ in range(4)], 40)
    early = machine.drafts
    machine.play([sequence() for _ in range(4)], 400)
    assert early > 0
    assert machine.drafts - early < 10 * early
    assert machine.rate > 0.9 * 4 / steep(4)


@pytest.mark.parametrize("within", [1.3, 2.0, 2.8])
def test_drafts_keep_a_step_within_its_time(within: float) -> None:
    """Those that have no drafts in it wait for its end: a target is kept whatever would be most tokens per second."""
    drafters = [Coin(0.95)]
    machine = Machine(Controller(drafters), drafters, flat)
    sequences = [sequence() for _ in range(4)]
    assert machine.play(sequences, 200) > 3.2, "much more pays"
    machine.drafts = 0
    longest = machine.play(sequences, 200, within)
    assert longest <= within * 1.1, "predictions are a little hopeful"
    assert machine.drafts > 0


def test_no_drafts_beside_a_prompt_nor_past_the_rows_nor_for_who_wants_none() -> None:
    coin = Coin(0.99)
    controller, four = Controller([coin], always=True), [sequence() for _ in range(4)]
    controller.open(four, 512, False)
    assert all(controller.draft(who) == ("", NO_GUESS) for who in four)
    controller.open(four, 6, True)
    assert len(controller.draft(four[0])[1].tokens) == 2
    assert controller.draft(four[1]) == ("", NO_GUESS)
    unwilling = sequence(speculate=False)
    controller.open([unwilling], 512, True)
    assert controller.draft(unwilling) == ("", NO_GUESS)


def test_drafts_end_before_the_sequence_does() -> None:
    """Each draft that is right brings a token, and one more comes with the last."""
    controller, who = Controller([Coin(0.99)], always=True), sequence()
    who.limit = who.known + 4
    controller.open([who], 512, True)
    assert len(controller.draft(who)[1].tokens) == 3


def test_pace_is_what_steps_took() -> None:
    times, rng = RowTimes(), random.Random(0)
    for _ in range(300):
        rows = rng.choice([1, 2, 4, 16])
        times.measured(rows, steep(rows) * rng.uniform(0.95, 1.05))
        times.check()
    for rows in (1, 2, 3, 4, 10, 16):
        assert times.seconds(rows) == pytest.approx(steep(rows), rel=0.1)
    assert times.knows(1)
    assert times.knows(10)
    assert not times.knows(17)


def test_more_rows_are_not_thought_to_take_less() -> None:
    """A step that was disturbed when it was first measured; and between those measured it may take less than a line."""
    times = RowTimes()
    for rows, seconds in ((1, 1.0), (4, 9.0), (9, 2.0), (16, 3.0)):
        times.measured(rows, seconds)
    for rows, seconds in ((1, 1.0), (9, 2.0), (16, 3.0)) * 99:
        times.measured(rows, seconds)
    assert times.seconds(4) == times.seconds(9)
    span = times.span(1, 30)
    assert span == pytest.approx([times.seconds(rows) for rows in range(1, 32)])
    assert 2.0 <= span[9] < 2 + 1 / 7
    assert 3.0 < span[30] < 3.0 * 31 / 16


def test_pace_follows_a_machine_that_slows_down() -> None:
    """All of it: also for numbers of rows that are not seen meanwhile."""
    times = RowTimes()
    for _ in range(50):
        for rows in (1, 8):
            times.measured(rows, steep(rows))
    for _ in range(50):
        times.measured(1, 3 * steep(1))
    assert times.seconds(8) / times.seconds(1) == pytest.approx(steep(8), rel=0.6)
    assert times.seconds(1) == pytest.approx(3, rel=0.05)


def test_a_step_that_was_disturbed_hardly_counts() -> None:
    times = RowTimes()
    for _ in range(50):
        times.measured(1, 1.0)
    times.measured(1, 100.0)
    assert times.seconds(1) == pytest.approx(1.0, rel=0.3)
