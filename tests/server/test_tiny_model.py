"""The whole line, HTTP to kernels, on a tiny random model: answers agree, whatever else is under way."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from openai.types import Completion
from openai.types.chat import ChatCompletion

from pagoda.config import ServerConfig
from pagoda.llm import LLM, engine_config, open_engine
from pagoda.obs.metrics import PrometheusObserver
from pagoda.types import SamplingParams
from server.conftest import Running, serving
from server.test_disconnects import soon
from server.test_metrics import values
from tiny import tiny_model

OPTIONS: Any = {"threads": 2, "page_size": 8, "max_num_seqs": 16, "chunk": 48, "kv_memory": 2**17}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tiny_model(tmp_path_factory.mktemp("tiny"), seed=5))


@pytest.fixture(scope="module")
def server(path: str) -> Iterator[Running]:
    observer = PrometheusObserver()
    opened = open_engine(engine_config(path, **OPTIONS), observer)
    with serving(opened.engine, opened.tokenizer, "echo", ServerConfig(port=0), observer) as running:
        yield running
    opened.close()


@pytest.fixture(scope="module")
def llm(path: str) -> Iterator[LLM]:
    with LLM(path, **OPTIONS) as made:
        yield made


CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "Say something."}], "max_tokens": 24, "seed": 11}


def text_of(events: list[Any], index: int = 0) -> str:
    choices = [choice for event in events[:-1] for choice in event["choices"] if choice["index"] == index]
    return "".join(choice["delta"].get("content", "") for choice in choices)


def test_streamed_is_whole(server: Running) -> None:
    whole = server.http.chat(**CHAT).json
    ChatCompletion.model_validate(whole)
    assert whole["usage"]["completion_tokens"] > 3
    assert whole["seed"] == 11
    assert text_of(server.http.chat(**CHAT, stream=True).events) == whole["choices"][0]["message"]["content"]
    again = server.http.chat(**CHAT).json
    assert again["choices"] == whole["choices"]
    assert again["system_fingerprint"] == whole["system_fingerprint"]


def test_drawn_seed_gives_the_answer_again(server: Running) -> None:
    drawn = server.http.chat(**CHAT | {"seed": None}).json
    assert server.http.chat(**CHAT | {"seed": drawn["seed"]}).json["choices"] == drawn["choices"]


def test_three_choices(server: Running) -> None:
    choices = server.http.chat(**CHAT, n=3).json["choices"]
    texts = [choice["message"]["content"] for choice in choices]
    assert len(set(texts)) == 3
    events = server.http.chat(**CHAT, n=3, stream=True).events
    assert [text_of(events, index) for index in range(3)] == texts
    assert texts[0] == server.http.chat(**CHAT).json["choices"][0]["message"]["content"]


def test_thirty_two_at_once_are_as_one_at_a_time(server: Running) -> None:
    """Of different lengths, with so little KV memory that they wait and are preempted; log-probabilities too."""

    def ask(number: int) -> Any:
        prompt = "word " * (number * 3 % 41 + 1)
        body = {"prompt": prompt, "max_tokens": 20 + number, "seed": number, "logprobs": 2}
        return server.http.complete(**body, temperature=number % 3 / 2).json["choices"]

    alone = [ask(number) for number in range(32)]
    with ThreadPoolExecutor(32) as pool:
        for _ in range(8):  # whether any loses its pages depends on who comes when
            assert list(pool.map(ask, range(32))) == alone
            if values(server.app.state.observer)["pagoda_preemptions_total"] > 0:
                return
    pytest.fail("no sequence ever lost its pages")


def test_logprobs(server: Running) -> None:
    chat = server.http.chat(**CHAT, logprobs=True, top_logprobs=3, temperature=0).json
    ChatCompletion.model_validate(chat)
    for entry in chat["choices"][0]["logprobs"]["content"]:
        assert len(entry["top_logprobs"]) == 3
        assert entry["logprob"] == entry["top_logprobs"][0]["logprob"] <= 0
    plain = server.http.complete(prompt="Once", logprobs=3, temperature=0).json
    Completion.model_validate(plain)
    logprobs = plain["choices"][0]["logprobs"]
    assert [max(top.values()) for top in logprobs["top_logprobs"]] == logprobs["token_logprobs"]
    assert len(logprobs["tokens"]) == plain["usage"]["completion_tokens"]


BEAMS: dict[str, Any] = {
    "prompt": "Once",
    "max_tokens": 9,
    "use_beam_search": True,
    "best_of": 5,
    "n": 3,
    "logprobs": 2,
}


def test_beams(server: Running, llm: LLM) -> None:
    answer = server.http.complete(**BEAMS, seed=1).json
    Completion.model_validate(answer)
    params = SamplingParams(max_tokens=9, beams=5, n=3, logprobs=2)
    (same,) = llm.generate("Once", params)
    assert [choice["text"] for choice in answer["choices"]] == [choice.text for choice in same.choices]
    sums = [sum(choice["logprobs"]["token_logprobs"]) for choice in answer["choices"]]
    means = [total / len(choice.token_ids) for total, choice in zip(sums, same.choices, strict=True)]
    assert means == sorted(means, reverse=True)
    assert len({choice.token_ids for choice in same.choices}) == 3
    assert all(len(top) in (2, 3) for choice in answer["choices"] for top in choice["logprobs"]["top_logprobs"])
    assert answer["usage"]["completion_tokens"] == sum(len(choice.token_ids) for choice in same.choices)
    greedy = server.http.complete(prompt="Once", max_tokens=9, temperature=0, logprobs=0).json
    assert means[0] >= sum(greedy["choices"][0]["logprobs"]["token_logprobs"]) / 9
    assert server.http.complete(**BEAMS, seed=2).json["choices"] == answer["choices"], "a seed changes nothing"
    stops = {"stop_token_ids": list(range(60, 120)), "early_stopping": "never"}
    used = [
        server.http.complete(**BEAMS, **stops, length_penalty=penalty).json["usage"]["completion_tokens"]
        for penalty in (-3.0, 3.0)
    ]
    assert used[0] < used[1] == 27, "what is made of short and of long lines"


def test_best_of(server: Running, llm: LLM) -> None:
    body = {"prompt": "Once", "max_tokens": 9, "seed": 3}
    every = server.http.complete(**body, n=6, logprobs=0).json["choices"]
    means = [sum(c["logprobs"]["token_logprobs"]) / len(c["logprobs"]["tokens"]) for c in every]
    ranked = [every[i]["text"] for i in sorted(range(6), key=lambda i: -means[i])]
    best = server.http.complete(**body, best_of=6, n=2).json["choices"]
    assert [choice["text"] for choice in best] == ranked[:2]
    assert [choice["index"] for choice in best] == [0, 1]
    assert best[0]["logprobs"] is None
    (same,) = llm.generate("Once", SamplingParams(max_tokens=9, seed=3, best_of=6, n=2))
    assert [choice.text for choice in same.choices] == ranked[:2]
    assert not same.choices[0].logprobs


def test_a_client_that_leaves_its_beams_frees_their_pages(server: Running) -> None:
    connection = server.http.connect()
    body = {"model": "echo", **BEAMS, "max_tokens": 400, "ignore_eos": True}
    connection.request("POST", "/v1/completions", json.dumps(body))
    soon(lambda: server.engine.health().running == 5)
    connection.close()
    soon(lambda: server.engine.health().running == 0, 1.0)
    server.http.complete(max_tokens=1)
    soon(lambda: values(server.app.state.observer)["pagoda_pages_used"] == 0)


def test_leaving_frees_the_pages(server: Running) -> None:
    connection = server.http.connect()
    body = {"model": "echo", "prompt": "x", "n": 4, "max_tokens": 400, "ignore_eos": True, "stream": True}
    connection.request("POST", "/v1/completions", json.dumps(body))
    assert connection.getresponse().readline().startswith(b"data: ")
    connection.close()
    soon(lambda: server.engine.health().running == 0, 1.0)
    server.http.complete(max_tokens=1)
    # The answer leaves the engine a moment before its step is counted.
    soon(lambda: values(server.app.state.observer)["pagoda_pages_used"] == 0)


def test_python_and_http_say_the_same(server: Running, llm: LLM) -> None:
    params = SamplingParams(max_tokens=24, seed=11)
    answer = llm.chat(CHAT["messages"], params)
    over_http = server.http.chat(**CHAT).json
    assert answer.text == over_http["choices"][0]["message"]["content"]
    assert answer.system_fingerprint == over_http["system_fingerprint"]
    with llm.stream(CHAT["messages"], params) as events:
        assert "".join(event.text for event in events) == answer.text
        assert events.completion().token_ids == answer.token_ids


def test_a_batch_is_as_each_alone(llm: LLM) -> None:
    params = [SamplingParams(max_tokens=5 + number, seed=number, n=1 + number % 3) for number in range(12)]
    prompts = ["a" * (number + 1) for number in range(12)]
    batch = llm.generate(prompts, params)
    for prompt, each, whole in zip(prompts, params, batch, strict=True):
        (alone,) = llm.generate(prompt, each)
        assert [c.token_ids for c in alone.choices] == [c.token_ids for c in whole.choices]
