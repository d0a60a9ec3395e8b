"""The table of engines: figures, ratios, errors and limits come out as they went in."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import engines
import limits
import make_model
import table
import worker

FAKE = """
import json, sys
speed = float(sys.argv[1])
print(json.dumps({"ready": {"fake": sys.argv[2]}}), flush=True)
asked = {}
for line in sys.stdin:
    cell = json.loads(line)
    times = asked[cell["cell"]] = asked.get(cell["cell"], 0) + 1
    if cell["cell"] == sys.argv[3]:
        if sys.argv[4] == "die":
            sys.exit("out of luck")
        print(json.dumps({"error": "ValueError: cannot do that | at all"}), flush=True)
        continue
    names = [f"{cell['cell']}b{b}" for b in cell["batches"]] if "batches" in cell else [cell["cell"]]
    print(json.dumps({name: times / speed for name in names}), flush=True)
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "tiny.gguf"
    make_model.make(path, make_model.SHAPES["tiny"], "q4_0", 0, "tiny")
    return path


@pytest.fixture
def fake(tmp_path: Path) -> Iterator[str]:
    """A command of a worker that takes a speed, a version, a cell it cannot do, and how it fails."""
    script = tmp_path / "fake.py"
    script.write_text(FAKE)
    return f"{sys.executable} {script}"


@pytest.fixture
def quick_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    real = limits.measure_machine
    monkeypatch.setattr(limits, "measure_machine", lambda threads, _seconds: real(threads, 0.05))
    monkeypatch.setattr("pagoda.bench.machine.buffer_bytes", lambda: 2**22)


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[str, dict[str, Any]]:
    table.main(["--threads", "1", *arguments])
    lines = capsys.readouterr().out.splitlines()
    return "\n".join(lines[:-1]), json.loads(lines[-1])


@pytest.mark.usefixtures("quick_machine")
def test_figures_ratios_and_errors(fake: str, model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text, found = run(
        capsys,
        *("--ours", f"{fake} 300 {{model}} none x", "--rounds", "3", "--long-every", "2"),
        *("--peer", f"half={fake} 150 {{model}} decode16 answer", "--peer", f"mortal={fake} 100 1 decode1024 die"),
        *("--peer", "absent=/no/such/program"),
        *("--pair", f"same={model}", "--pair", f"other={model},other.gguf"),
        *("--cells", "prefill8 decode16b1,4 decode1024b2"),
        *("--want", "*/*/*=3", "--want", "half/same/prefill8=1.5"),
    )
    same, other = found["pairs"]
    assert (same["ours"], same["theirs"], other["theirs"]) == ("tiny.gguf", "tiny.gguf", "other.gguf")
    assert same["versions"]["half"] == {"fake": str(model)}
    assert other["versions"]["half"] == {"fake": "other.gguf"}
    assert list(same["tok_s"]["Pagoda"]) == ["prefill8", "decode16b1", "decode16b4", "decode1024b2"]
    assert same["tok_s"]["Pagoda"] == dict.fromkeys(same["tok_s"]["Pagoda"], 300)
    assert same["ratio"]["half"] == {"prefill8": 2.0, "decode1024b2": 2.0}
    assert len(same["seconds"]["half"]["prefill8"]) == 3
    assert len(same["seconds"]["half"]["decode1024b2"]) == 2
    assert same["errors"]["half"]["decode16b4"] == "ValueError: cannot do that | at all"
    assert "out of luck" in same["errors"]["mortal"]["decode1024b2"]
    assert set(same["ratio"]["mortal"]) == {"prefill8", "decode16b1", "decode16b4"}, "what it did before it died"
    assert all("cannot be started" in error for error in same["errors"]["absent"].values())
    assert "| prefill8 | 300 | 150 | 2.00x | 2.00x | 1.5x | yes |" in text
    assert "| prefill8 | 300 | 150 | 2.00x | 2.00x | 3x | no |" in text
    assert "| decode16b4 | 300 | - ValueError: cannot do that / at all | - | - | 3x |  |" in text
    assert "### same: Pagoda (tiny.gguf) and mortal (tiny.gguf), 3 rounds" in text


@pytest.mark.usefixtures("quick_machine")
def test_shares_of_the_limits(fake: str, model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By hand: every matrix but the embedding once a row, the vocabulary once, two products for each pair."""
    text, found = run(
        capsys,
        "--ours",
        f"{fake} 100 1 none x",
        "--rounds",
        "1",
        "--pair",
        f"a={model}",
        "--cells",
        "prefill8 decode16b1",
    )
    prefill, decode = sorted(found["shares"], key=lambda share: share["unit"], reverse=True)[0], found["shares"][0]
    layer = 2 * 256 * 256 + 2 * 128 * 256 + 3 * 256 * 512
    operations = 2 * (2 * layer * 8 + 1280 * 256 + 2 * 2 * 4 * 64 * (8 * 9 // 2))
    assert prefill["does"] * 1e9 == pytest.approx(operations / (8 * 0.01))
    weights = 2 * layer * 18 / 32 + 1280 * 256 * 34 / 32 + 256 * 34 / 32
    kv = 16 * 2 * 2 * 2 * 64 * 2
    assert decode["does"] * 1e9 == pytest.approx((weights + kv) / 0.01, rel=0.01)
    assert found["machine"]["read_gb_s"] == decode["limit"] > 0.1
    assert decode["share"] == decode["does"] / decode["limit"]
    assert f"| a | decode16b1 | {decode['does']:.1f} GB/s" in text


def test_an_engine_that_never_answers(tmp_path: Path) -> None:
    script = tmp_path / "mute.py"
    script.write_text("import time\ntime.sleep(60)\n")
    began = time.monotonic()
    with pytest.raises(engines.EngineError, match=r"no answer within 0.2 s"):
        engines.Worker("mute", f"{sys.executable} {script}", {}, 0.2)
    assert time.monotonic() - began < 10


@pytest.mark.parametrize("wrong", ["prefill", "decode16", "decodeb1", "decode16b", "decode16b1,", "x512"])
def test_cells_that_are_none(wrong: str) -> None:
    with pytest.raises(SystemExit, match="a cell is prefillN or decodeCbB"):
        engines.cell_named(wrong)


def test_the_protocol() -> None:
    def answer(**asked: object) -> dict[str, float]:
        return worker.answer(asked, lambda n: n * 2.0, lambda context, batch: context + batch)

    assert answer(cell="prefill512") == {"prefill512": 2.0}
    assert answer(cell="decode16", batches=[1, 4]) == {"decode16b1": 17.0, "decode16b4": 5.0}
    for wrong in ({"cell": "prefil"}, {"cell": "decode16"}, {}):
        with pytest.raises(ValueError, match=r"no cell|needs batches"):
            answer(**wrong)
    assert worker.best_window([9, 1, 1, 1, 5, 1, 1, 1, 1, 9]) == 1
    assert worker.best_window([4, 4, 4, 0]) == 3


def test_pagodas_own_worker(model: Path) -> None:
    """Long contexts and several of them, again and again."""
    own = engines.Worker("own", table.OURS + " --longest 700", fields(model), 120)
    try:
        assert "pagoda" in own.versions
        for _ in range(2):
            assert own.ask(engines.cell_named("decode600b1,3"))["decode600b3"] > 0
        assert own.ask(engines.cell_named("prefill64"))["prefill64"] > 0
        with pytest.raises(engines.EngineError, match="PromptTooLong"):
            own.ask(engines.cell_named("prefill5000"))
    finally:
        own.close()


def fields(model: Path) -> dict[str, object]:
    return {"python": sys.executable, "here": str(Path(table.__file__).parent), "model": model, "threads": 1}
