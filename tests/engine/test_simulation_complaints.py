"""What users of other engines complain of in their issues, replayed on the simulator.

Short requests that pile up behind a few long prompts (vllm-project/vllm#10235, #21495), requests that are thrown out
over and over when memory is short (vllm-project/vllm#41951), and a queue that goes on counting those who left
(vllm-project/vllm#4000, #2901).
"""

from __future__ import annotations

from collections import Counter

import pytest

from pagoda.bench.outcomes import report
from pagoda.bench.simulate import Simulation
from pagoda.bench.workloads import Ask, Shape, poisson
from pagoda.config import SchedulerConfig
from pagoda.engine import validate
from pagoda.errors import TargetMissed
from pagoda.obs.observer import NoObserver
from pagoda.types import SamplingParams, Slo


class Lost(NoObserver):
    """How often each request lost its pages."""

    def __init__(self):
        self.times = Counter()

    def preempted(self, request_id):
        self.times[request_id] += 1


def test_short_requests_do_not_pile_up_behind_a_few_long_prompts():
    shorts = poisson(2.0, 40, Shape((16, 48), (16, 32)), 3)
    longs = [Ask(5.0, ((f"long {i}", 4000),), 8) for i in range(4)]
    alone, outcomes = report(Simulation().play(shorts)), Simulation().play([*shorts, *longs])
    beside = report([o for o in outcomes if o.ask.tokens < 100])
    assert beside["ttft_ms"]["p99"] < alone["ttft_ms"]["p99"] + 750
    assert beside["itl_ms"]["p99"] < 120, "they go on decoding at no less than eight tokens a second"
    last = max(o.times[-1] for o in outcomes if o.ask.tokens == 4000)
    assert last < 5 + 1.6 * 4 * 4000 * 1.4e-3, "and the long ones are not put off for ever"


@pytest.mark.parametrize("pages", [180, 300])
def test_nobody_loses_its_pages_over_and_over(pages):
    lost = Lost()
    asks = poisson(3.0, 60, Shape((100, 400), (200, 400)), 8)
    simulation = Simulation(SchedulerConfig(max_num_seqs=16), pages=pages, longest=1000, observer=lost)
    outcomes = simulation.play(asks)
    assert all(len(outcome.times) == outcome.ask.output for outcome in outcomes)
    assert lost.times, "memory was short"
    assert max(lost.times.values()) < 16, "nobody more often than others run beside it"
    assert sum(lost.times.values()) < len(asks), "less than once each, in the mean"


def test_those_who_left_the_queue_are_waited_for_no_longer():
    simulation = Simulation(SchedulerConfig(ttft_target_ms=2000))
    simulation.play([Ask(0.0, (("first", 300),), 4)])
    engine = simulation.engine

    def submit(name, first, late):
        params = SamplingParams(max_tokens=8, seed=0)
        prompt = range(first, first + 300)
        slo = Slo(serve_late=late)
        engine.submit(
            validate(prompt, params, engine.capacity, request_id=name, arrival=simulation.now, slo=slo), lambda _: None
        )

    for i in range(40):
        submit(str(i), 10**6 * (i % 20), True)
    with pytest.raises(TargetMissed):
        submit("late", 0, False)
    with pytest.raises(TargetMissed):
        engine.refuse_early("", Slo(), simulation.now)
    for i in range(40):
        engine.cancel(str(i))
    while engine.turn():
        engine.check()
    engine.refuse_early("", Slo(), simulation.now)
    submit("early", 10**6, False)
    assert engine._roster.waiting.tokens == 0
    assert engine.forecast._coming == {"early": 300}, "nobody computes what it begins with any more"
    while engine.turn():
        engine.check()
    assert not engine.forecast._coming
    assert not engine.forecast._beginnings._of
