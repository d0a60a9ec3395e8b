"""What a model's makers recommend, from both kinds of files to what is sampled."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from pagoda import LLM, SamplingParams
from pagoda.catalog.hf_generation import translate_sampling
from pagoda.config import ServerConfig
from pagoda.errors import InvalidConfig
from pagoda.recommended import recommended
from pagoda.types import GenerateRequest, TokenEvent
from server.conftest import MODEL, serving
from server.fakes import ByteTokenizer, EchoEngine
from tiny import TinyShape, tiny_file


def test_every_field_in_the_words_of_gguf() -> None:
    generation = {
        "temperature": 0.6, "top_p": 0.95, "top_k": 20, "min_p": 0.05, "repetition_penalty": 1.1, "max_length": 9,
    }  # fmt: skip
    assert recommended(translate_sampling(generation)) == {
        "temperature": 0.6, "top_p": 0.95, "top_k": 20, "min_p": 0.05, "repetition_penalty": 1.1,
    }  # fmt: skip
    assert recommended(translate_sampling({"do_sample": False, "temperature": 0.6})) == {"temperature": 0.0}
    assert recommended(translate_sampling({"do_sample": True, "top_k": 50})) == {"top_k": 50}
    assert recommended(translate_sampling({})) == recommended({}) == {}


@pytest.mark.parametrize("value", ["warm", True, [1], -1, 2.5, float("nan"), float("inf")])
def test_advice_out_of_range_is_not_followed(value: object, caplog: pytest.LogCaptureFixture) -> None:
    assert recommended({"general.sampling.temp": value, "general.sampling.top_k": 5}) == {"top_k": 5}
    assert "the model recommends temperature" in caplog.text


def test_top_k_in_files_may_be_minus_one() -> None:
    assert recommended({"general.sampling.top_k": -1}) == {"top_k": 0}


def test_from_the_file_to_the_tokens(tmp_path: Path) -> None:
    """A recommended temperature of 0 is what no parameters mean; any parameters are taken as they stand."""
    file = tiny_file(TinyShape())
    file.metadata["general.sampling.temp"] = 0.0
    path = tmp_path / "advised.gguf"
    path.write_bytes(file.bytes())
    with LLM(str(path), max_num_seqs=4) as llm:
        assert llm.recommended == SamplingParams(temperature=0.0)
        (advised,) = llm.generate("Once upon")
        greedy, drawn = llm.generate(["Once upon"] * 2, [SamplingParams(temperature=0), SamplingParams(seed=1)])
    assert advised.choices[0].token_ids == greedy.choices[0].token_ids != drawn.choices[0].token_ids


class Listening(EchoEngine):
    """Remembers what it was asked."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[SamplingParams] = []

    def submit(
        self, request: GenerateRequest, sink: Callable[[TokenEvent], None], wake: Callable[[], None] = lambda: None
    ) -> None:
        self.asked.append(request.params)
        super().submit(request, sink, wake)


@pytest.mark.parametrize("endpoint", ["chat", "complete"])
def test_requests_that_say_nothing(endpoint: str) -> None:
    engine = Listening()
    engine.start()
    advice = SamplingParams(temperature=0.6, top_k=20)
    with serving(engine, ByteTokenizer(), MODEL, ServerConfig(port=0), defaults=advice) as server:
        ask = getattr(server.http, endpoint)
        for more in ({}, {"temperature": 1.2}, {"temperature": 1, "top_k": 0}):
            assert ask(max_tokens=1, **more).status == 200
        assert [(each.temperature, each.top_k) for each in engine.asked] == [(0.6, 20), (1.2, 20), (1.0, 0)]
        if endpoint == "complete":
            assert ask(max_tokens=1, use_beam_search=True, n=2).status == 200
            assert engine.asked[-1].beams == 2
            assert engine.asked[-1].temperature == 1, "beams draw nothing, and no advice is against them"
    engine.close()


def test_the_setting_has_two_values() -> None:
    with pytest.raises(InvalidConfig, match="sampling_defaults must be model or openai, got 'vllm'"):
        ServerConfig(sampling_defaults="vllm")
