"""The same work in static and in continuous batches, on a tiny model; and what a server does before it promises."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from pagoda.bench.static import LONGEST, compare, work
from pagoda.cli._app import app
from pagoda.engine.forecast import LEARNED
from pagoda.engine.warm_up import warm_up
from pagoda.errors import EngineDied
from pagoda.llm import engine_config, open_engine
from tiny import tiny_model


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tiny_model(tmp_path_factory.mktemp("static"), vocabulary=512, context=512))


def test_both_ways_give_all_answers(tiny: str) -> None:
    found = compare(tiny, batch=4, count=12, threads=1)
    assert (found["batch"], found["requests"]) == (4, 12)
    for each in (found["static"], found["continuous"]):
        assert each["tok_s"] > 0
        assert 0 < each["answer_s_p50"] <= each["answer_s_p99"] <= each["seconds"] + 0.01
    assert found["gain"] > 0


def test_the_command(tiny: str) -> None:
    result = CliRunner().invoke(app, ["bench", "offline", tiny, "--static", "--json", "--threads", "1"])
    assert result.exit_code == 0, result.output
    assert set(json.loads(result.stdout)) == {"batch", "requests", "static", "continuous", "gain"}


def test_a_warm_engine_knows_its_steps(tiny: str) -> None:
    opened = open_engine(engine_config(tiny, threads=1))
    engine = opened.engine
    requests = work(engine, 200)
    assert max(r.params.max_tokens or 0 for r in requests) <= LONGEST
    lengths = sorted(r.params.max_tokens or 0 for r in requests)
    assert lengths[-1] > 3 * lengths[100], "most answers are short, a few are long"
    assert not engine.forecast.learned
    warm_up(engine)
    assert engine.cost.steps >= LEARNED
    assert engine.forecast.learned
    engine.check()
    opened.close()
    with pytest.raises(EngineDied):
        warm_up(engine)


def test_a_small_context_is_warmed_too(tmp_path: Path) -> None:
    opened = open_engine(engine_config(str(tiny_model(tmp_path, vocabulary=512)), threads=1, max_model_len=16))
    warm_up(opened.engine)
    opened.close()
