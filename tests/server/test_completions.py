"""Plain completions through the real `openai` client."""

from __future__ import annotations

from typing import Any

import openai
import pytest
from openai.types import Completion

from server.conftest import Running


@pytest.fixture
def server(shared: Running) -> Running:
    """Nothing here changes the server."""
    return shared


def test_whole(client: openai.OpenAI) -> None:
    raw = client.completions.with_raw_response.create(model="echo", prompt="one two", max_tokens=50, seed=3)
    body = raw.http_response.json()
    Completion.model_validate(body)
    assert body["choices"] == [{"index": 0, "text": "[0]one two", "logprobs": None, "finish_reason": "stop"}]
    assert body["object"] == "text_completion"
    assert (body["seed"], body["system_fingerprint"]) == (3, "fp_echo")
    assert body["usage"]["total_tokens"] == 7 + 7 + 4


def test_streamed(client: openai.OpenAI) -> None:
    options: Any = {"include_usage": True}
    chunks = list(
        client.completions.create(model="echo", prompt="☃ snow", max_tokens=50, stream=True, stream_options=options)
    )
    *body, last = chunks
    assert "".join(chunk.choices[0].text for chunk in body) == "[0]☃ snow"
    assert body[-1].choices[0].finish_reason == "stop"
    assert last.choices == []
    assert last.usage is not None
    assert last.usage.completion_tokens == len("☃ snow".encode()) + 4


def test_default_length_is_openais(client: openai.OpenAI) -> None:
    answer = client.completions.create(model="echo", prompt="x" * 40)
    assert answer.choices[0].text == "[0]" + "x" * 13
    assert answer.choices[0].finish_reason == "length"


PROMPTS = [
    ("ab", ["ab"]),
    ([97, 98], ["ab"]),
    (["ab", "cd"], ["ab", "cd"]),
    ([[97], [98, 99]], ["a", "bc"]),
    (["ab", [99, 100]], ["ab", "cd"]),
]


@pytest.mark.parametrize(("prompt", "texts"), PROMPTS)
@pytest.mark.parametrize("n", [1, 2])
def test_prompts(server: Running, prompt: Any, texts: list[str], n: int) -> None:
    expected = [f"[{index}]{text}" for text in texts for index in range(n)]
    whole = server.http.complete(prompt=prompt, n=n, stream_options=None).json
    assert [choice["text"] for choice in whole["choices"]] == expected
    assert [choice["index"] for choice in whole["choices"]] == list(range(len(expected)))
    prompt_tokens = sum(map(len, texts))
    assert whole["usage"]["prompt_tokens"] == prompt_tokens
    assert whole["usage"]["completion_tokens"] == n * (prompt_tokens + 4 * len(texts))
    stream = server.http.complete(prompt=prompt, n=n, stream=True, stream_options={"include_usage": True})
    *chunks, last, done = stream.events
    assert done == "[DONE]"
    streamed = [""] * len(expected)
    for chunk in chunks:
        streamed[chunk["choices"][0]["index"]] += chunk["choices"][0]["text"]
    assert streamed == expected
    assert last["usage"] == whole["usage"]


def test_several_prompts_share_the_drawn_seed(server: Running) -> None:
    body = server.http.complete(prompt=["ab", "cd"]).json
    assert body["id"].startswith("cmpl-")
    assert body["id"].count("-") == 1
    assert isinstance(body["seed"], int)


def test_logprobs(client: openai.OpenAI) -> None:
    raw = client.completions.with_raw_response.create(model="echo", prompt="é!", max_tokens=50, logprobs=2)
    body = raw.http_response.json()
    Completion.model_validate(body)
    logprobs = body["choices"][0]["logprobs"]
    assert logprobs["tokens"] == ["[", "0", "]", "bytes:\\xc3", "bytes:\\xa9", "!", "<end>"]
    assert logprobs["text_offset"] == [0, 1, 2, 3, 3, 4, 5]
    assert logprobs["token_logprobs"] == [-0.25] * 7
    assert logprobs["top_logprobs"][0] == {"[": -0.25, "\\": -0.5}


def test_logprobs_zero_has_the_chosen_token(client: openai.OpenAI) -> None:
    answer = client.completions.create(model="echo", prompt="a", logprobs=0)
    assert answer.choices[0].logprobs is not None
    assert answer.choices[0].logprobs.top_logprobs is not None
    assert answer.choices[0].logprobs.top_logprobs[0] == {"[": -0.25}


def test_streamed_logprobs_count_on(server: Running) -> None:
    whole = server.http.complete(prompt="é!", logprobs=1).json["choices"][0]["logprobs"]
    joined: dict[str, list[Any]] = {name: [] for name in whole}
    for chunk in server.http.complete(prompt="é!", logprobs=1, stream=True).events[:-1]:
        for name, values in (chunk["choices"][0]["logprobs"] or {}).items():
            joined[name] += values
    assert joined == whole
