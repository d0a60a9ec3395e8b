"""The benchmark that toggles runs, in small, and each part it switches is really on and off."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import toggle

from pagoda.obs.observer import EngineState, NoObserver
from pagoda.plan import StepPlan, StepResult
from tiny import tiny_model


class Steps(NoObserver):
    """How many it was told of."""

    steps = 0

    def stepped(self, plan: StepPlan, result: StepResult, state: EngineState) -> None:
        self.steps += 1


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> toggle.Bench:
    model = tiny_model(tmp_path_factory.mktemp("model"), vocabulary=2048, context=512)
    return toggle.Bench(str(model), 3, 400)


@pytest.mark.parametrize("part", toggle.PARTS)
def test_a_part_is_measured(bench: toggle.Bench, part: str) -> None:
    found = toggle.measure(bench, part, pairs=2, steps=12)
    assert found["ratio"] > 0
    assert found["interval"][0] <= found["ratio"] <= found["interval"][1]
    assert not bench.engine._roster.live


def test_parts_are_switched(bench: toggle.Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    seen_off = Steps()
    monkeypatch.setattr(toggle, "NoObserver", lambda: seen_off)
    engine = bench.engine
    policies, looking = toggle.policies(bench), toggle.looking(bench)
    bench.load()
    for on in (True, False, True):
        policies(on)
        looking(on)
        seen, weights = engine.cost.steps, engine.cost.weights
        bench.steps(10)
        assert (engine.cost.steps > seen) == (engine.cost.weights != weights) == on
        assert bool(engine._scheduler._speculation.drafters) == engine._scheduler._drafts == on
        assert engine._scheduler._pace._fixed is not on
    metrics = toggle.metrics(bench)
    metrics(True)
    bench.steps(9)
    assert seen_off.steps == 0
    metrics(False)
    bench.steps(9)
    assert seen_off.steps == 9
    bench.drop()


def test_the_interval_holds_the_median_and_shrinks() -> None:
    draw = random.Random(1)
    few, many = ([draw.gauss(1.0, 0.02) for _ in range(count)] for count in (8, 200))
    (a, b), (c, d) = (toggle.interval(ratios, random.Random(0)) for ratios in (few, many))
    assert a < 1.0 < b
    assert c < 1.0 < d
    assert d - c < (b - a) / 2
