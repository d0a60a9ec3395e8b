"""`pagoda verify`: passes on a sound engine, and fails on one that is not."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from pagoda.bench import verify
from pagoda.bench.verify import chance_of, check_sampling, check_speculation
from pagoda.cli._app import app
from pagoda.engine.finish import Finish
from tiny import tiny_model


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    shape = {"width": 64, "heads": 4, "kv_heads": 2, "head_dim": 16, "ffn": 96, "layers": 2}
    return str(tiny_model(tmp_path_factory.mktemp("tiny"), **shape))


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PAGODA_CACHE", str(tmp_path / "cache"))


@pytest.mark.parametrize("speculate", ["auto", "self:1", "draft"])
def test_drafts_change_nothing(path: str, speculate: str) -> None:
    checks = check_speculation(path, f"draft:{path}" if speculate == "draft" else speculate, 30)
    assert all(check.first_difference is None and check.tokens == 30 for check in checks)
    assert sum(check.accepted + check.rejected for check in checks) > 4
    if speculate == "draft":
        assert sum(check.accepted for check in checks) > 50, "the model itself guesses well"


def test_a_difference_is_found(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another model beneath the drafts: its outputs are compared with those without."""
    plain = verify._answers

    def shifted(engine: Any, opened: Any, prompts: Any, temperature: float, tokens: int) -> Any:
        drafted = bool(engine._speculation.drafters)
        return plain(engine, opened, [p + "!" * drafted for p in prompts], temperature, tokens)

    monkeypatch.setattr(verify, "_answers", shifted)
    assert any(check.first_difference is not None for check in check_speculation(path, "ngram", 20))


def test_sampling_passes_and_a_loaded_die_does_not(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert all(check.passed and check.outcomes > 3 for check in check_sampling(path, 1024))
    sound: Callable[..., Any] = Finish.apply
    draw = random.Random(0)

    def loaded(self: Any, sequence: Any, sampled: Any, now: float) -> Any:
        news = sound(self, sequence, sampled, now)
        if draw.random() < 0.5 and news.event.logprobs:
            return news._replace(event=_with_token(news.event, news.event.logprobs[0].top[0][0]))
        return news

    monkeypatch.setattr(Finish, "apply", loaded)
    assert not all(check.passed for check in check_sampling(path, 1024))


def _with_token(event: Any, token: int) -> Any:
    from dataclasses import replace

    return replace(event, token_ids=(token,))


@pytest.mark.parametrize(("chi_squared", "freedom", "chance"), [(3.84, 1, 0.05), (18.31, 10, 0.05), (30.58, 15, 0.01)])
def test_chance_of_chi_squared(chi_squared: float, freedom: int, chance: float) -> None:
    """Against the tables."""
    assert math.isclose(chance_of(chi_squared, freedom), chance, rel_tol=0.15)


def test_the_command(path: str) -> None:
    result = CliRunner().invoke(app, ["verify", path, "--speculation", "--tokens", "8", "--json"])
    report = json.loads(result.stdout.splitlines()[-1])
    assert result.exit_code == 0
    assert report["passed"] is True
    assert report["sampling"] == []
    assert {check["tokens"] for check in report["speculation"]} == {8}


def test_nothing_to_compare(path: str) -> None:
    result = CliRunner().invoke(app, ["verify", path, "--speculate", "off"])
    assert result.exit_code == 2
    assert "name a drafter" in result.output
