"""The engine on a clock that jumps: what holds for any traffic, and the figures that are promised, in seconds.

The machine is a formula (`pagoda.bench.simulate.Machine`); the figures of the real one are those of
`benchmarks/latency.py`.
"""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pagoda.bench.outcomes import report
from pagoda.bench.simulate import Machine, Simulation
from pagoda.bench.workloads import Ask, Shape, bursts, closed, merged, poisson, read_trace
from pagoda.config import SchedulerConfig
from pagoda.engine.cost import PRIOR, StepCost, Work, work_of
from pagoda.engine.flights import Flights
from pagoda.errors import InvalidConfig
from pagoda.obs.observer import NoObserver
from pagoda.plan import Chunk, StepPlan, StepResult
from pagoda.types import Slo

SHAPE = Shape((64, 512), (32, 96))


class Steps(NoObserver):
    """Every step's rows and what was refused."""

    def __init__(self):
        self.rows, self.refusals = [], []

    def stepped(self, plan, result, state):
        self.rows.append(plan.rows)

    def refused(self, cause):
        self.refusals.append(cause)


def owned(asks, key):
    return [replace(ask, key=key) for ask in asks]


ASKS = st.lists(
    st.builds(
        Ask,
        at=st.floats(0, 5),
        prompt=st.lists(
            st.tuples(st.sampled_from("abcdef"), st.integers(1, 300)), min_size=1, max_size=3, unique_by=lambda r: r[0]
        ).map(tuple),
        output=st.integers(1, 40),
        key=st.sampled_from(["", "a", "b"]),
    ),
    min_size=1,
    max_size=25,
)


@settings(max_examples=40, deadline=None)
@given(
    asks=ASKS,
    config=st.builds(
        SchedulerConfig,
        max_num_seqs=st.sampled_from([1, 3, 64]),
        chunk=st.sampled_from([None, None, 7, 64]),
        max_queued=st.sampled_from([5, 100]),
        max_queued_tokens=st.sampled_from([700, 10**6]),
        ttft_target_ms=st.sampled_from([None, 300.0]),
        tpot_target_ms=st.sampled_from([None, 30.0]),
        steps_in_flight=st.sampled_from([1, 2]),
    ),
    pages=st.sampled_from([70, 400]),
    seed=st.integers(0, 99),
)
def test_each_ends_once_and_nothing_is_exceeded(asks, config, pages, seed):
    steps = Steps()
    simulation = Simulation(config, pages=pages, longest=1000, seed=seed, observer=steps, check=True)
    outcomes = simulation.play(asks)
    assert max(steps.rows, default=0) <= config.rows
    for outcome in outcomes:
        if outcome.refused:
            assert (outcome.times, outcome.ended) == ([], 0)
        else:
            assert outcome.ended == 1
            assert len(outcome.times) == outcome.ask.output
            assert outcome.times[0] >= outcome.ask.at
    assert len(steps.refusals) == sum(bool(outcome.refused) for outcome in outcomes)
    assert not simulation.engine._roster.live


def test_the_same_seed_plays_the_same():
    plays = [[o.times for o in Simulation(seed=3).play(poisson(3, 20, SHAPE, 4))] for _ in range(2)]
    assert plays[0] == plays[1]


def test_nobody_starves_under_a_flood_of_more_urgent_ones():
    """A long prompt, and short ones that keep the machine busy for ever: it is done when it is due, about."""
    long = Ask(1.0, (("long", 3000),), 1)
    shorts = poisson(6, 60, Shape((64, 128), (4, 8)), 2)
    outcome = next(o for o in Simulation().play([long, *shorts]) if o.ask is long)
    assert outcome.ttft < 4 * 3000 * 1.5e-3


def test_short_prompts_are_not_stuck_behind_a_long_one():
    long, short = Ask(0.0, (("long", 4000),), 1), Ask(0.3, (("short", 40),), 1)
    ttft = {o.ask.output: o.ttft for o in Simulation().play([long])}
    together = {o.ask.tokens: o.ttft for o in Simulation().play([long, short])}
    assert together[40] < 0.7
    assert together[4000] < ttft[1] + 0.3


def test_targets_are_ordered():
    """Who asks for less waits less."""
    means = []
    for target in (500, 2000, 8000):
        outcomes = Simulation(slo=Slo(target)).play(poisson(6, 40, SHAPE, 9))
        means.append(report(outcomes, target / 1000))
    assert all(mean["kept"] >= 0.93 for mean in means), means
    assert means[0]["ttft_ms"]["p50"] < means[1]["ttft_ms"]["p50"] < means[2]["ttft_ms"]["p50"]


@pytest.mark.parametrize("seed", [1, 2])
def test_overload_keeps_the_target_for_those_taken_on(seed):
    config = SchedulerConfig(ttft_target_ms=2000)
    once, thrice = (report(Simulation(config).play(poisson(r, 100, SHAPE, seed)), 2.0) for r in (2.3, 6.9))
    assert thrice["kept"] >= 0.95
    assert thrice["goodput_tokens_per_s"] >= 0.9 * once["goodput_tokens_per_s"]
    assert thrice["refused"] > thrice["served"] / 2
    for each in (once, thrice):
        assert each["prediction_error_median"] <= 0.15


def alike(size, shared, seed):
    """Bursts of short prompts, those of each after a long beginning that nobody has seen before."""
    asks = bursts(size, 12.0, 6, Shape((32, 96), (16, 48), shared), seed)
    return [replace(ask, prompt=((f"{ask.at}", shared), ask.prompt[1])) for ask in asks]


@pytest.mark.parametrize("seed", [1, 2])
def test_a_burst_that_begins_alike_is_not_taken_for_all_its_prompts(seed):
    """The first computes the beginning for all: 24 prompts of 576 tokens are the work of 2,000, not of 14,000."""
    asks = alike(24, 512, seed)
    served = report(Simulation(seed=seed).play(asks))
    assert served["prediction_error_median"] <= 0.2
    strict = report(Simulation(SchedulerConfig(ttft_target_ms=2000), seed=seed).play(asks), 2.0)
    assert strict["kept"] >= 0.95
    assert strict["served"] >= len(asks) / 2
    apart = [replace(ask, prompt=((f"{ask.at} {i}", 512), ask.prompt[1])) for i, ask in enumerate(asks)]
    apart = report(Simulation(SchedulerConfig(ttft_target_ms=2000), seed=seed).play(apart), 2.0)
    assert apart["kept"] >= 0.95
    assert len(asks) / 15 < apart["served"] < len(asks) / 6, "of those that share nothing two or three are let in"


def test_other_tenants_beginnings_are_nobodys():
    asks = alike(8, 512, 1)
    asks = [replace(ask, key=f"key {i}") for i, ask in enumerate(asks)]
    outcomes = Simulation().play(asks)
    assert not any(outcome.cached_tokens for outcome in outcomes)
    assert report(outcomes)["prediction_error_median"] <= 0.3


def test_a_light_key_hardly_notices_a_heavy_one():
    light, heavy = owned(poisson(0.2, 250, SHAPE, 5), "light"), owned(poisson(10, 250, SHAPE, 6), "heavy")
    config = SchedulerConfig(max_queued_tokens=50_000)
    alone = report(Simulation(config).play(light))
    both = Simulation(config).play(merged(light, heavy))
    beside = [outcome for outcome in both if outcome.ask.key == "light"]
    assert not any(outcome.refused for outcome in beside)
    assert any(outcome.refused for outcome in both)
    assert report(beside)["ttft_ms"]["p99"] <= 1.5 * alone["ttft_ms"]["p99"]


def test_chats_and_long_prompts():
    chats = [Ask(0.0, ((f"chat {i}", 64),), 1200) for i in range(16)]
    longs = [Ask(10.0 + 12 * i, ((f"long {i}", 3000),), 8) for i in range(3)]
    calm, alone = report(Simulation().play(chats)), report(Simulation().play(longs))
    for target in (None, 100.0):
        outcomes = Simulation(SchedulerConfig(tpot_target_ms=target)).play([*chats, *longs])
        itl = report([o for o in outcomes if o.ask.output == 1200])["itl_ms"]["p99"]
        assert itl <= (target or 2 * calm["itl_ms"]["p99"])
        assert report([o for o in outcomes if o.ask.output == 8])["ttft_ms"]["p50"] <= 2.5 * alone["ttft_ms"]["p50"]


def test_a_request_may_ask_to_be_served_late():
    late = Simulation(slo=Slo(300, serve_late=True)).play(bursts(40, 5, 2, SHAPE))
    strict = Simulation(slo=Slo(300)).play(bursts(40, 5, 2, SHAPE))
    assert not any(o.refused for o in late)
    refused = [o for o in strict if o.refused]
    assert {o.refused for o in refused} == {"ttft_target"}
    assert all(o.predicted > 0.1 for o in refused)


def test_the_cost_of_a_step_is_learned_and_bursts_move_little():
    draw, cost, machine = random.Random(0), StepCost(), Machine()
    for i in range(2000):
        singles, rows = draw.randint(1, 40), draw.choice([0, 0, 16, 64, 200])
        if 500 < i < 1500:
            singles, rows = 4, 0  # for long the same: nothing may drift
        work = Work(singles, singles + rows, (singles + rows) * draw.randint(10, 2000))
        exact = machine.step + machine.sampled * work.sampled + machine.row * work.rows + 2e-7 * work.attended
        cost.observe(work, exact * (4 if draw.random() < 0.01 else 1) * (1 + draw.gauss(0, 0.03)))
        cost.check()
    for work in (Work(1, 1, 10), Work(1, 500, 500 * 250), Work(32, 32, 32 * 500)):
        exact = machine.step + machine.sampled * work.sampled + machine.row * work.rows + 2e-7 * work.attended
        assert cost.predict(work) == pytest.approx(exact, rel=0.1)
    assert cost.error < 0.15


def test_the_cost_follows_a_machine_that_slows_down():
    cost, work = StepCost(), Work(4, 20, 4000)
    for _ in range(100):
        cost.observe(work, 0.02)
    for _ in range(100):
        cost.observe(work, 0.06)
        cost.check()
    assert cost.predict(work) == pytest.approx(0.06, rel=0.1)


STEPS = st.tuples(st.integers(0, 32), st.sampled_from([0, 16, 48, 250]), st.integers(1, 2000), st.integers(1, 25))
"""Singles, rows of a prompt, positions each attends to, and how often in a row."""


@settings(max_examples=60, deadline=None)
@given(
    machine=st.tuples(*[st.sampled_from([0.02, 0.2, 1.0, 20.0])] * 4),
    history=st.lists(STEPS.filter(lambda step: step[0] + step[1]), min_size=1, max_size=8),
    seed=st.integers(0, 9),
)
def test_the_cost_of_what_goes_on_is_known_whatever_went_before(machine, history, seed):
    """A weight that the data press below its least takes no other with it: else predictions ran away, a step at a time,
    from steps that were all alike.
    """
    cost, draw = StepCost(), random.Random(seed)
    weights = [factor * prior for factor, prior in zip(machine, PRIOR, strict=True)]
    for singles, rows, context, times in [*history, (*history[-1][:3], 100)]:
        work = Work(singles, singles + rows, (singles + rows) * context)
        seconds = sum(w * x for w, x in zip(weights, work.features(), strict=True))
        for _ in range(times):
            cost.observe(work, seconds * (1 + draw.gauss(0, 0.03)))
            cost.check()
    assert cost.predict(work) == pytest.approx(seconds, rel=0.15)


def test_what_a_prompts_token_takes_is_told_once_a_prompt_was_seen():
    cost, machine = StepCost(), Machine()

    def observe(singles, rows):
        attended = (singles + rows) * 100
        exact = machine.step + machine.sampled * singles + machine.row * (singles + rows)
        cost.observe(Work(singles, singles + rows, attended), exact + machine.attended * attended)

    for _ in range(50):
        observe(30, 20)
        assert cost.token_s is None
    for rows in (100, 200, 300) * 20:
        observe(4, rows)
    exact = machine.step / 256 + machine.row + machine.attended * 128
    assert cost.token_s == pytest.approx(exact, rel=0.1)


def test_plans_under_way_say_when_they_will_be_done():
    cost = StepCost()
    flights = Flights(cost)
    plans = [StepPlan(i, (Chunk(0, i, (1,), ((0,),), True),)) for i in range(3)]
    each = cost.predict(work_of(plans[0]))
    flights.add(plans[0], "a", 10.0)
    flights.add(plans[1], "b", 10.0)
    assert flights.busy_until == pytest.approx(10 + 2 * each, rel=0.01)
    first = flights.take()
    assert (first.handle, first.ahead, len(flights)) == ("a", False, 1)
    landing = flights.landed(first, StepResult(0, (), 0.5), 11.0)
    assert (landing.error, landing.gap) == (pytest.approx(each - 1.0), None)
    assert 11 < flights.busy_until <= 12
    flights.add(plans[2], "c", 11.25)
    assert (second := flights.take()).ahead
    assert flights.landed(second, StepResult(1, (), 0.25), 12.0).gap == pytest.approx(0.75)
    flights.idle()
    assert flights.landed(flights.take(), StepResult(2, (), 0.25), 13.0).gap is None


@given(st.lists(st.tuples(st.integers(0, 64), st.integers(1, 4096), st.floats(0, 1e4)), max_size=60))
def test_the_cost_stays_sound_whatever_it_is_told(steps):
    cost = StepCost()
    for sampled, rows, seconds in steps:
        cost.observe(Work(sampled, rows, rows * 10), seconds)
        cost.check()
        assert cost.row(0) >= 0.01 * PRIOR[2]


MOONCAKE = """{"timestamp": 2000, "input_length": 700, "output_length": 5, "hash_ids": [0, 1]}
{"timestamp": 5000, "input_length": 1100, "output_length": 50, "hash_ids": [0, 1, 7]}
"""
AZURE = (
    "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,374,44\n2023-11-16 18:15:50.6805900,396,109\n"
)


def test_traces_are_read(tmp_path):
    (tmp_path / "m.jsonl").write_text(MOONCAKE)
    (tmp_path / "a.csv").write_text(AZURE)
    (tmp_path / "s.csv").write_text("1.5,10,2\n0.5,20,3\n")
    first, second = read_trace(tmp_path / "m.jsonl", speed=2)
    assert (first.at, second.at, first.tokens, second.tokens) == (0, 1.5, 700, 1100)
    assert first.prompt == (("block-0", 512), ("block-1", 188))
    assert second.prompt[:2] == (("block-0", 512), ("block-1", 512))
    first, second = read_trace(tmp_path / "a.csv", lengths=0.5, longest=200)
    assert (first.at, first.tokens, first.output) == (0, 187, 13)
    assert (round(second.at, 6), second.tokens, second.output) == (4, 198, 2)
    assert [ask.tokens for ask in read_trace(tmp_path / "s.csv")] == [20, 10]
    (tmp_path / "bad.csv").write_text("a,b\nc,d\n")
    with pytest.raises(InvalidConfig, match=r"bad\.csv is not a trace"):
        read_trace(tmp_path / "bad.csv")


def test_prefixes_of_a_trace_are_found(tmp_path):
    (tmp_path / "m.jsonl").write_text(MOONCAKE)
    first, second = Simulation().play(read_trace(tmp_path / "m.jsonl"))
    assert second.ttft < first.ttft * 0.75, "700 of its 1,100 tokens are there"


def test_workloads_are_seeded():
    shape = replace(SHAPE, shared=40)
    for make in (
        lambda s: closed(9, shape, s),
        lambda s: poisson(3, 9, shape, s),
        lambda s: bursts(3, 2.0, 3, shape, s),
    ):
        assert make(1) == make(1) != make(2)
        assert len({ask.prompt[0] for ask in make(1)}) == 1
        assert all(64 + 40 <= ask.tokens <= 512 + 40 and 32 <= ask.output <= 96 for ask in make(1))
    assert [ask.at for ask in bursts(2, 3.0, 2, shape)] == [0, 0, 3, 3]
