"""`pagoda eval` from end to end on tiny models: verdicts, what is damaged, mixes, the picture, the command."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from pagoda import LLM
from pagoda.catalog import open_model
from pagoda.cli._app import app
from pagoda.errors import InvalidConfig
from pagoda.gate import shelf
from pagoda.gate.bench import Bench, Wanted
from pagoda.gate.chart import draw
from pagoda.gate.evaluate import Evaluation, evaluate
from pagoda.gate.fallback import enough, fall_back
from pagoda.gate.verdict import Finding, Verdict
from tiny import tiny_model

from .worlds import a_verdict, damage

SMALL = Wanted(lengths=(128, 256), threads=1)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tiny_model(tmp_path_factory.mktemp("tiny"), layers=2))


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PAGODA_CACHE", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def found(path: str, tmp_path_factory: pytest.TempPathFactory) -> Evaluation:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PAGODA_CACHE", str(tmp_path_factory.mktemp("cache")))
        return evaluate(path, SMALL)


def test_both_formats_are_judged_beside_f16(path: str, found: Evaluation) -> None:
    int8, int4 = found.verdicts
    assert (int8.kv_format, int4.kv_format) == ("int8", "int4")
    assert int8.passed
    assert not int4.passed
    assert int4["divergence"].value > 20 * int8["divergence"].value > 0
    assert [at.tokens for at in found.reference] == [at.tokens for at in int8.lengths] == [128, 256]
    assert all(at.divergence == 0 and at.agreement == 1 for at in found.reference)
    assert int8["answers"].of == 48
    with LLM(path, threads=1, kv_format="int8") as llm:
        assert llm.system_fingerprint == int8.fingerprint
    with LLM(path, threads=1) as llm:
        assert llm.system_fingerprint == int8.against_fingerprint


def test_verdicts_are_kept_and_chosen(path: str) -> None:
    news: list[tuple[int, int]] = []
    found = evaluate(path, replace(SMALL, kv_formats=("int8",)), tell=lambda *news_of: news.append(news_of))
    assert shelf.every() == list(found.verdicts)
    assert news[-1][0] == news[-1][1]
    assert news == sorted(news)
    with LLM(path, threads=1, kv_format="auto") as llm:
        assert llm.system_fingerprint == found.verdicts[0].fingerprint
    evaluate(path, replace(SMALL, kv_formats=("int4",), quick=True))
    assert len(shelf.every()) == 1, "what was measured quickly is not kept"


def test_scales_off_by_a_tenth_are_caught(path: str) -> None:
    with open_model(path) as file:
        bench = Bench(path, file, (path, file), SMALL)
        sound = bench.subject(None, "int8")
        _, verdicts = bench.judge([sound, damage(sound, 1.0), damage(sound, 1.1), damage(sound, 0.9)])
    assert [v.passed for v in verdicts] == [True, True, False, False]
    assert verdicts[0].findings == verdicts[1].findings
    assert all(not v["divergence"].passed for v in verdicts[2:])


def test_f16_is_judged_beside_f32(path: str) -> None:
    found = evaluate(path, replace(SMALL, kv_formats=("f16",)))
    assert found.against.endswith("f32 KV")
    assert 0 < found.verdicts[0]["divergence"].value < 1e-4


def test_weights_and_another_file(tmp_path: Path) -> None:
    dense = str(tiny_model(tmp_path, format="f32", embedding_format="f32", liveliness=0.5))
    found = evaluate(dense, replace(SMALL, weights=("q8_0", "q4_0"), kv_formats=("f16", "int8")))
    assert [v.format for v in found.verdicts] == [
        f"{q} weights, {kv} KV" for q in ("q8_0", "q4_0") for kv in ("f16", "int8")
    ]
    assert found.verdicts[0]["divergence"].value < found.verdicts[2]["divergence"].value
    packed = str(tiny_model(tmp_path, liveliness=0.5))
    beside = evaluate(packed, replace(SMALL, against=dense))
    assert beside.verdicts[0].kv_format == "f16"
    assert beside.verdicts[0]["divergence"].value > 0
    with pytest.raises(InvalidConfig, match="name the dense model as --against"):
        evaluate(str(tiny_model(tmp_path, embedding_format="q4_1")), replace(SMALL, weights=("q8_0",)))
    other = str(tiny_model(tmp_path, vocabulary=330))
    with pytest.raises(InvalidConfig, match=r"330 tokens and .* 320"):
        evaluate(other, replace(SMALL, against=dense))


class FakeBench:
    """Layers that each add so much divergence while they are coarse; passes within the limit."""

    def __init__(self, alone: Sequence[float], limit: float) -> None:
        self._alone, self._limit = alone, limit
        self.reference = SimpleNamespace(net=SimpleNamespace(model=SimpleNamespace(layers=len(alone))))
        self.judged: list[str] = []

    def subject(self, quantize: str | None, kv_format: str) -> str:
        return quantize or kv_format

    def _sum(self, text: str) -> float:
        finer = {int(i) for i in text.partition(":")[2].split(",")}
        return sum(x for i, x in enumerate(self._alone) if i not in finer)

    def divergences(self, subjects: Sequence[str]) -> list[float]:
        return list(map(self._sum, subjects))

    def judge(self, subjects: Sequence[str]) -> tuple[None, list[Verdict]]:
        self.judged += subjects
        far = self._sum(subjects[0])
        finding = Finding("divergence", far, 0.0, far, self._limit, far <= self._limit, 1)
        return None, [a_verdict(kv_format=subjects[0], findings=(finding,))]


def fallen_back(alone: Sequence[float], limit: float = 0.02, **fields: Any) -> tuple[Verdict | None, list[str]]:
    bench = FakeBench(alone, limit)
    return fall_back(bench, a_verdict(**{"kv_format": "int4", **fields})), bench.judged  # type: ignore[arg-type]


def test_the_worst_layers_become_finer() -> None:
    found, judged = fallen_back([0.001, 0.03, 0.002, 0.02, 0.001, 0.001])
    assert found is not None
    assert found.passed
    assert judged == ["int4:1,3"]
    assert fallen_back([0.001, 0.03, 0.002, 0.02, 0.001, 0.001], quantize="q4_k")[1] == ["q4_k:1,3"]


def test_more_layers_if_the_first_try_fails_and_none_if_half_do_not_do() -> None:
    found, judged = fallen_back([0.03, 0.02, 0.008, 0.001, 0.001, 0.001], limit=0.004)
    assert found is not None
    assert judged == ["int4:0,1", "int4:0,1,2"]
    found, judged = fallen_back([0.03] * 6)
    assert found is not None
    assert not found.passed, "shown, and never chosen"
    assert judged == ["int4:0,1,2"]
    assert fallen_back([0.03] * 4, kv_format="f16") == (None, [])


def test_enough() -> None:
    assert enough([5, 3, 1, 1], 2) == 2
    assert enough([5, 3, 1, 1], 100) == 1
    assert enough([5, 3, 1, 1], 0) == 4


def test_a_mix_is_found_in_a_real_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Limits that only the whole format breaks."""
    path = str(tiny_model(tmp_path, layers=4, seed=1))
    wanted = replace(SMALL, kv_formats=("int4",), mixed=True)
    plain = evaluate(path, replace(wanted, mixed=False)).verdicts[0]
    for name, limit in (("DIVERGENCE", 0.6 * plain["divergence"].bound), ("AGREEMENT", 0.0), ("PERPLEXITY", 9.0)):
        monkeypatch.setattr(f"pagoda.gate.judge.{name}", limit)
    monkeypatch.setattr("pagoda.gate.fallback.DIVERGENCE", 0.6 * plain["divergence"].bound)
    whole, mixed = evaluate(path, wanted).verdicts
    assert not whole.passed
    assert mixed.passed
    assert re.fullmatch(r"int4:\d(,\d)?", mixed.kv_format)
    with LLM(path, threads=1, kv_format="auto") as llm:
        assert mixed.kv_format in llm.chosen[0]
        assert llm.system_fingerprint == mixed.fingerprint


def test_the_picture(found: Evaluation) -> None:
    tree = ET.fromstring(draw(replace(found, model="a <b> & c")))
    name = "{http://www.w3.org/2000/svg}"
    lines, dots = list(tree.iter(f"{name}polyline")), list(tree.iter(f"{name}circle"))
    assert len(lines) == 2 * 2 + 3 * 3, "two panels without the reference, three with it"
    assert len(dots) == 2 * len(lines), "two lengths"
    divergence = [float(dot.attrib["cy"]) for dot in dots[:4]]
    assert max(divergence[2:]) < min(divergence[:2]), "int4 lies higher than int8"
    texts = [element.text for element in tree.iter(f"{name}text")]
    assert "a <b> & c against " + found.against in texts
    width, height = (float(tree.attrib[side]) for side in ("width", "height"))
    for dot in dots:
        assert 0 <= float(dot.attrib["cx"]) <= width
        assert 0 <= float(dot.attrib["cy"]) <= height


def asked(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["eval", *arguments])


def test_the_command(path: str, tmp_path: Path) -> None:
    options = ("--lengths", "128, 256", "--threads", "1")
    assert "no verdicts are kept" in asked("--list").stdout
    result = asked(path, *options, "--plot", str(tmp_path / "kv.svg"))
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout.splitlines()[-1])
    assert [(v["format"], v["passed"]) for v in report["verdicts"]] == [("int8 KV", True), ("int4 KV", False)]
    assert re.search(r"^int8 KV +128 +\S+ +\S+% +\S+ +0/0 +\d/8$", result.stdout, flags=re.M)
    assert "int4 KV: FAILED" in result.stdout
    ET.parse(tmp_path / "kv.svg")
    assert sorted(re.findall(r"  (passed|FAILED)", asked("--list").stdout)) == ["FAILED", "passed"]
    assert {v["kv_format"] for v in json.loads(asked("--list", "--json").stdout)} == {"int8", "int4"}
    named = asked(path, *options, "--kv-format", "int8, int4:0,1,int4,int8", "--json")
    assert named.exit_code == 1, "a format that was named fails"
    (line,) = named.stdout.splitlines()
    assert [v["kv_format"] for v in json.loads(line)["verdicts"]] == ["int8", "int4:0,1", "int4"]


def test_ctrl_c_leaves_nothing_behind(path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ticks: list[int] = []

    def tick(self: Bench, rows: int) -> None:
        ticks.append(rows)
        if len(ticks) == 9:
            raise KeyboardInterrupt

    monkeypatch.setattr(Bench, "_tick", tick)
    result = asked(path, "--lengths", "128", "--threads", "1", "--plot", str(tmp_path / "kv.svg"))
    assert result.exit_code == 130
    assert len(ticks) == 9
    assert result.stdout == ""
    assert shelf.every() == []
    assert not (tmp_path / "kv.svg").exists()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--plot", "kv.png"), "SVG"), (("--lengths", "12,x"), "number"), (("--lengths", "9000"), "lengths must be"),
        (("--kv-format", "int5"), "int5"),
        (("--weights", "int8"), "quantize must be"), (("--kv-format", "auto"), "auto"),
    ],
)  # fmt: skip
def test_what_cannot_be_done(path: str, options: tuple[str, str], said: str) -> None:
    result = asked(path, *options)
    assert result.exit_code in (1, 2)
    assert said in result.output
    assert shelf.every() == []
