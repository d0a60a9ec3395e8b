"""Chat completions through the real `openai` client."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import openai
import pytest
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from server.conftest import Running
from server.fakes import EchoEngine


@pytest.fixture
def server(shared: Running) -> Running:
    """Nothing here changes the server."""
    return shared


HELLO = [{"role": "user", "content": "héllo ☃"}]
ECHO = "user: héllo ☃\n"


def text_of(chunks: list[ChatCompletionChunk], index: int = 0) -> str:
    return "".join(c.delta.content or "" for chunk in chunks for c in chunk.choices if c.index == index)


def test_whole(client: openai.OpenAI) -> None:
    raw = client.chat.completions.with_raw_response.create(model="echo", messages=HELLO, seed=7)
    body = raw.http_response.json()
    answer = ChatCompletion.model_validate(body)
    choice = body["choices"][0]
    assert choice == {
        "index": 0,
        "message": {"role": "assistant", "content": f"[0]{ECHO}", "refusal": None},
        "logprobs": None,
        "finish_reason": "stop",
    }
    assert answer.object == "chat.completion"
    assert answer.id.startswith("chatcmpl-")
    assert body["system_fingerprint"] == "fp_echo"
    assert body["seed"] == 7
    size = len(ECHO.encode())
    assert body["usage"] == {
        "prompt_tokens": size,
        "completion_tokens": size + 4,
        "total_tokens": 2 * size + 4,
        "prompt_tokens_details": {"cached_tokens": 8},
        "completion_tokens_details": {"accepted_prediction_tokens": 0, "rejected_prediction_tokens": 0},
    }


def test_streamed(client: openai.OpenAI) -> None:
    chunks = list(client.chat.completions.create(model="echo", messages=HELLO, stream=True, seed=2**60))
    assert text_of(chunks) == f"[0]{ECHO}"
    assert {chunk.id for chunk in chunks} == {chunks[0].id}
    assert {chunk.object for chunk in chunks} == {"chat.completion.chunk"}
    assert {chunk.system_fingerprint for chunk in chunks} == {"fp_echo"}
    assert {chunk.model_extra["seed"] for chunk in chunks if chunk.model_extra} == {2**60}
    assert chunks[0].choices[0].delta.role == "assistant"
    assert all(chunk.choices[0].delta.role is None for chunk in chunks[1:])
    assert [chunk.choices[0].finish_reason for chunk in chunks] == [None] * (len(chunks) - 1) + ["stop"]
    assert not chunks[-1].choices[0].delta.content


def test_stream_on_the_wire(server: Running) -> None:
    """What the client hides: the end mark, the null usage, and that a chunk always has the required fields."""
    *chunks, last, done = server.http.chat(stream=True, stream_options={"include_usage": True}).events
    assert done == "[DONE]"
    assert last["choices"] == []
    assert last["usage"]["total_tokens"] == last["usage"]["prompt_tokens"] + last["usage"]["completion_tokens"]
    assert last["usage"]["prompt_tokens_details"] == {"cached_tokens": 8}
    for chunk in chunks:
        ChatCompletionChunk.model_validate(chunk)
        assert chunk["usage"] is None
        assert set(chunk["choices"][0]) == {"index", "delta", "logprobs", "finish_reason"}
    plain = server.http.chat(stream=True).events[:-1]
    assert all("usage" not in chunk for chunk in plain)


@pytest.mark.parametrize("stream", [False, True])
def test_three_choices(client: openai.OpenAI, stream: bool) -> None:
    if stream:
        chunks = list(client.chat.completions.create(model="echo", messages=HELLO, n=3, stream=True))
        texts = [text_of(chunks, index) for index in range(3)]
        roles = [c.index for chunk in chunks for c in chunk.choices if c.delta.role]
        assert sorted(roles) == [0, 1, 2]
    else:
        answer = client.chat.completions.create(model="echo", messages=HELLO, n=3)
        assert [choice.index for choice in answer.choices] == [0, 1, 2]
        texts = [str(choice.message.content) for choice in answer.choices]
        assert answer.usage is not None
        assert answer.usage.prompt_tokens == len(ECHO.encode())
        assert answer.usage.completion_tokens == 3 * (len(ECHO.encode()) + 4)
    assert texts == [f"[{index}]{ECHO}" for index in range(3)]


def test_thirty_two_at_once(client: openai.OpenAI, engine: EchoEngine) -> None:
    def ask(number: int) -> str:
        messages = [{"role": "user", "content": f"number {number}"}]
        if number % 2:
            return text_of(list(client.chat.completions.create(model="echo", messages=messages, stream=True)))
        return str(client.chat.completions.create(model="echo", messages=messages).choices[0].message.content)

    with ThreadPoolExecutor(32) as pool:
        answers = list(pool.map(ask, range(32)))
    assert answers == [f"[0]user: number {number}\n" for number in range(32)]
    assert engine.health().running == 0


@pytest.mark.parametrize("stop", ["llo", ["zzz", "llo"]])
def test_stop_strings(client: openai.OpenAI, stop: str | list[str]) -> None:
    choice = client.chat.completions.create(model="echo", messages=HELLO, stop=stop).choices[0]
    assert (choice.message.content, choice.finish_reason) == ("[0]user: hé", "stop")
    chunks = list(client.chat.completions.create(model="echo", messages=HELLO, stop=stop, stream=True))
    assert text_of(chunks) == "[0]user: hé"


@pytest.mark.parametrize("field", ["max_tokens", "max_completion_tokens"])
def test_max_tokens(server: Running, field: str) -> None:
    choice = server.http.chat(**{field: 4}).json["choices"][0]
    assert (choice["message"]["content"], choice["finish_reason"]) == ("[0]u", "length")


def test_servers_cap(server: Running) -> None:
    answer = server.http.chat(ignore_eos=True, max_tokens=10_000).json
    assert answer["usage"]["completion_tokens"] == 200
    assert answer["choices"][0]["finish_reason"] == "length"


def test_seed_is_drawn_and_returned(server: Running) -> None:
    seeds = {server.http.chat().json["seed"] for _ in range(4)}
    assert len(seeds) > 1
    assert all(isinstance(seed, int) and seed >= 0 for seed in seeds)


def test_negative_seed(server: Running) -> None:
    assert server.http.chat(seed=-1).json["seed"] == -1


def test_content_parts_and_roles(server: Running) -> None:
    messages = [
        {"role": "developer", "content": "be brief", "name": None},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"role": "assistant", "content": "c", "refusal": None, "annotations": [], "tool_calls": []},
        {"role": "user", "content": ""},
    ]
    text = server.http.chat(messages=messages).json["choices"][0]["message"]["content"]
    assert text == "[0]system: be brief\nuser: ab\nassistant: c\nuser: \n"


def test_logprobs(client: openai.OpenAI) -> None:
    raw = client.chat.completions.with_raw_response.create(model="echo", messages=HELLO, logprobs=True, top_logprobs=2)
    body = raw.http_response.json()
    ChatCompletion.model_validate(body)
    content = body["choices"][0]["logprobs"]["content"]
    assert [entry["token"] for entry in content[:4]] == ["[", "0", "]", "u"]
    assert content[0] == {
        "token": "[",
        "logprob": -0.25,
        "bytes": [91],
        "top_logprobs": [
            {"token": "[", "logprob": -0.25, "bytes": [91]},
            {"token": "\\", "logprob": -0.5, "bytes": [92]},
        ],
    }
    accent = content[3 + len("user: h")]
    assert (accent["token"], accent["bytes"]) == ("bytes:\\xc3", [0xC3])
    joined = bytes(byte for entry in content[:-1] for byte in entry["bytes"])
    assert joined.decode() == body["choices"][0]["message"]["content"]


def test_streamed_logprobs(client: openai.OpenAI) -> None:
    whole = client.chat.completions.create(model="echo", messages=HELLO, logprobs=True)
    assert whole.choices[0].logprobs is not None
    assert whole.choices[0].logprobs.content is not None
    assert all(entry.top_logprobs == [] for entry in whole.choices[0].logprobs.content)
    chunks = list(client.chat.completions.create(model="echo", messages=HELLO, logprobs=True, stream=True))
    streamed = [
        entry
        for chunk in chunks
        if chunk.choices[0].logprobs is not None
        for entry in chunk.choices[0].logprobs.content or []
    ]
    assert streamed == whole.choices[0].logprobs.content
