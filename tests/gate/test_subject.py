"""A subject computes what the engine computes; continuations read the pages of the text they continue."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pagoda import LLM, SamplingParams
from pagoda.catalog import Quantized, open_model
from pagoda.config import ModelConfig
from pagoda.gate.subject import PAGE, Net, Subject
from tiny import tiny_model

RNG = np.random.default_rng(5)
TEXT = [int(t) for t in RNG.integers(3, 259, 6 * PAGE)]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("tiny"), layers=3)


@pytest.fixture(scope="module")
def net(path: Path) -> Net:
    with open_model(path) as file:
        return Net(file, 512, threads=1)


def subject(net: Net, kv_format: str = "int8") -> Subject:
    return Subject(net, ModelConfig(kv_format=kv_format), "")


def test_continuations_are_computed_as_if_written_out(net: Net) -> None:
    """Of more tokens together than one step or the spare pages hold."""
    tails = [[int(t) for t in RNG.integers(3, 259, size)] for size in (3, 40, 1, 17, 30) * 30]
    forked = subject(net)
    rows = []
    forked.tick = rows.append
    forked.begin(len(TEXT))
    forked.feed(TEXT)
    got = list(forked.ask(tails, [min(2, len(tail)) for tail in tails]))
    assert sum(rows) == len(TEXT) + sum(map(len, tails))
    assert len(rows) > 3
    for tail, logits in list(zip(tails, got, strict=True))[-5:]:
        whole = subject(net)
        whole.begin(len(TEXT) + len(tail))
        whole.feed(TEXT[:50])
        expected = whole.read([*TEXT[50:], *tail])[-len(logits) :]
        assert np.array_equal(logits, expected)


@pytest.mark.parametrize("kv_format", ["int8", "int4:0,2"])
def test_it_draws_what_the_engine_draws(path: Path, net: Net, kv_format: str) -> None:
    drawing = subject(net, kv_format)
    drawing.begin(len(TEXT))
    drawing.feed(TEXT)
    greedy, warm = drawing.draw(7, 2, 20, 0.5)
    with LLM(str(path), threads=1, kv_format=kv_format) as llm:
        plain = SamplingParams(max_tokens=20, temperature=0, ignore_eos=True)
        (answer,) = llm.generate([[*TEXT, 7]], plain)
    assert greedy == list(answer.choices[0].token_ids)
    assert warm != greedy


def test_layers_of_two_nets_are_those_of_a_file_with_both(tmp_path: Path) -> None:
    path = tiny_model(tmp_path, layers=3, format="f32", embedding_format="f32")
    with open_model(path) as dense:
        assert not isinstance(dense, Quantized)
        coarse, fine, both = (Net(Quantized(dense, q), 256, threads=1) for q in ("q4_0", "q8_0", "q4_0:0,2"))
    logits = []
    for net in (coarse.with_layers(fine, (0, 2)), both, coarse):
        one = subject(net, "f16")
        one.begin(len(TEXT))
        logits.append(one.read(TEXT))
    assert np.array_equal(logits[0], logits[1])
    assert not np.array_equal(logits[0], logits[2])
