"""Every field that is not served is refused by name; every bad value is named; what changes nothing is accepted."""

from __future__ import annotations

from typing import Any

import openai
import pytest

from server.conftest import Running
from server.fakes import ByteTokenizer


@pytest.fixture
def server(shared: Running) -> Running:
    """Nothing here changes the server."""
    return shared


NEUTRAL_VALUES: list[tuple[str, Any]] = [
    ("n", 1),
    ("user", "someone"),
    ("metadata", {"a": "b"}),
    ("store", False),
    ("response_format", {"type": "text"}),
    ("logit_bias", {}),
    ("tools", []),
    ("tool_choice", "none"),
    ("tool_choice", "auto"),
    ("parallel_tool_calls", True),
    ("parallel_tool_calls", False),
    ("functions", []),
    ("function_call", "none"),
    ("modalities", ["text"]),
    ("stream_options", None),
    ("service_tier", "auto"),
    ("service_tier", "default"),
    ("safety_identifier", "x"),
    ("prompt_cache_key", "x"),
    ("reasoning_effort", "none"),
    ("verbosity", "medium"),
    ("logprobs", False),
    ("top_logprobs", 0),
    ("stream", False),
    ("audio", None),
    ("anything_at_all", None),
]
REFUSED_CHAT: list[tuple[str, Any]] = [
    ("metadata", "x"),
    ("store", True),
    ("response_format", {"type": "json_object"}),
    ("response_format", {"type": "json_schema", "json_schema": {"name": "x"}}),
    ("logit_bias", {"50256": -100}),
    ("tools", [{"type": "function", "function": {"name": "f"}}]),
    ("tool_choice", "required"),
    ("functions", [{"name": "f"}]),
    ("function_call", {"name": "f"}),
    ("modalities", ["text", "audio"]),
    ("audio", {"voice": "alloy", "format": "wav"}),
    ("prediction", {"type": "content", "content": "x"}),
    ("web_search_options", {}),
    ("reasoning_effort", "high"),
    ("verbosity", "low"),
    ("service_tier", "flex"),
    ("store", 0),
    ("moderation", {}),
    ("guided_json", {}),
    ("best_of", 1),
    ("echo", False),
]


@pytest.mark.parametrize(("field", "value"), NEUTRAL_VALUES)
def test_neutral(server: Running, field: str, value: Any) -> None:
    assert server.http.chat(**{field: value}).status == 200


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("echo", False),
        ("suffix", ""),
        ("suffix", None),
        ("best_of", 1),
        ("user", "x"),
        ("n", 1),
        ("use_beam_search", False),
        ("length_penalty", 1.0),
        ("early_stopping", False),
        ("length_penalty", None),
    ],
)
def test_neutral_completions(server: Running, field: str, value: Any) -> None:
    assert server.http.complete(**{field: value}).status == 200


@pytest.mark.parametrize(("field", "value"), REFUSED_CHAT)
def test_refused_by_name(server: Running, field: str, value: Any) -> None:
    answer = server.http.chat(**{field: value})
    assert answer.status == 400
    assert answer.error["param"] == field
    assert answer.error["code"] == "unsupported_field"
    assert field in answer.error["message"]


@pytest.mark.parametrize(
    ("field", "value"), [("echo", True), ("suffix", "x"), ("best_of", 129), ("messages", []), ("logit_bias", {"1": 1})]
)
def test_refused_by_completions(server: Running, field: str, value: Any) -> None:
    answer = server.http.complete(**{field: value})
    assert (answer.status, answer.error["param"]) == (400, field)


NO_BEAMS: list[tuple[dict[str, Any], str]] = [
    ({"best_of": 2, "n": 3}, "best_of"),
    ({"best_of": 129}, "best_of"),
    ({"temperature": 0.7}, "temperature"),
    ({"top_p": 0.9}, "top_p"),
    ({"top_k": 4}, "top_k"),
    ({"min_p": 0.1}, "min_p"),
    ({"presence_penalty": 1}, "presence_penalty"),
    ({"frequency_penalty": 1}, "frequency_penalty"),
    ({"repetition_penalty": 1.2}, "repetition_penalty"),
    ({"stream": True}, "stream"),
    ({"early_stopping": "often"}, "early_stopping"),
    ({"length_penalty": 11}, "length_penalty"),
    ({"prompt": ["a"] * 33}, "prompt"),
]


@pytest.mark.parametrize(("fields", "param"), NO_BEAMS)
def test_what_does_not_combine_with_beams(server: Running, fields: dict[str, Any], param: str) -> None:
    answer = server.http.complete(**{"use_beam_search": True, "best_of": 4} | fields)
    assert (answer.status, answer.error["param"]) == (400, param)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"length_penalty": 2.0}, "length_penalty"),
        ({"early_stopping": True}, "early_stopping"),
        ({"best_of": 2, "stream": True}, "stream"),
        ({"best_of": 1, "n": 2}, "best_of"),
        ({"best_of": 64, "prompt": ["a", "b", "c"]}, "prompt"),
    ],
)
def test_what_does_not_combine_with_samples(server: Running, fields: dict[str, Any], param: str) -> None:
    answer = server.http.complete(**fields)
    assert (answer.status, answer.error["param"]) == (400, param)


BAD_VALUES: list[tuple[str, Any, str]] = [
    ("temperature", -0.1, "temperature"),
    ("temperature", 2.1, "temperature"),
    ("temperature", "hot", "temperature"),
    ("temperature", True, "temperature"),
    ("top_p", 0, "top_p"),
    ("top_p", 1.5, "top_p"),
    ("top_k", -1, "top_k"),
    ("top_k", 1.5, "top_k"),
    ("min_p", 2, "min_p"),
    ("seed", "x", "seed"),
    ("seed", 2**64, "seed"),
    ("seed", -(2**63) - 1, "seed"),
    ("n", 0, "n"),
    ("n", 129, "n"),
    ("n", 10**30, "n"),
    ("max_tokens", 0, "max_tokens"),
    ("max_tokens", -1, "max_tokens"),
    ("max_completion_tokens", 0, "max_completion_tokens"),
    ("presence_penalty", 3, "presence_penalty"),
    ("frequency_penalty", -3, "frequency_penalty"),
    ("repetition_penalty", 0, "repetition_penalty"),
    ("stop", [""], "stop"),
    ("stop", ["x"] * 17, "stop"),
    ("stop", [1], "stop[0]"),
    ("stop", 1, "stop"),
    ("stop_token_ids", ["x"], "stop_token_ids[0]"),
    ("stream", "yes", "stream"),
    ("stream_options", {"include_usage": True}, "stream_options"),
    ("logprobs", 1, "logprobs"),
    ("top_logprobs", 3, "top_logprobs"),
    ("messages", [], "messages"),
    ("messages", "hi", "messages"),
    ("messages", ["hi"], "messages[0]"),
    ("messages", [{"content": "hi"}], "messages[0].role"),
    ("messages", [{"role": "wizard", "content": "hi"}], "messages[0].role"),
    ("messages", [{"role": "tool", "content": "hi", "tool_call_id": "1"}], "messages[0].tool_call_id"),
    ("messages", [{"role": "user"}], "messages[0].content"),
    ("messages", [{"role": "user", "content": None}], "messages[0].content"),
    ("messages", [{"role": "user", "content": []}], "messages[0].content"),
    ("messages", [{"role": "user", "content": "x", "name": 1}], "messages[0].name"),
    ("messages", [{"role": "user", "content": [{"type": "image_url"}]}], "messages[0].content[0]"),
    ("messages", [{"role": "user", "content": [{"type": "text"}]}], "messages[0].content[0].text"),
    ("messages", [{"role": "user", "content": [{"type": "text", "text": 1}]}], "messages[0].content[0].text"),
    ("messages", [{"role": "assistant", "content": "x", "tool_calls": [{}]}], "messages[0].tool_calls"),
    ("model", None, "model"),
    ("model", 7, "model"),
]


@pytest.mark.parametrize(("field", "value", "param"), BAD_VALUES)
def test_bad_value_is_named(server: Running, field: str, value: Any, param: str) -> None:
    answer = server.http.chat(**{field: value})
    assert answer.status == 400
    assert answer.error["param"] == param
    assert param.split("[")[0].split(".")[0] in answer.error["message"]


BAD_PROMPTS = [None, [], "", [[]], [1.5], [1, "a"], ["a", 1], [-1], [260], [2**70], [True], [["a"]], {}, ["a"] * 129]


@pytest.mark.parametrize("prompt", BAD_PROMPTS)
def test_bad_prompts(server: Running, prompt: Any) -> None:
    answer = server.http.complete(prompt=prompt)
    assert answer.status == 400
    assert answer.error["param"].startswith("prompt")


def test_the_value_found_is_shown(server: Running) -> None:
    assert server.http.chat(max_tokens=-7).error["message"].endswith(": -7")
    assert '"hot"' in server.http.chat(temperature="hot").error["message"]


def test_streams_options_by_name(server: Running) -> None:
    answer = server.http.chat(stream=True, stream_options={"include_usage": True, "include_obfuscation": True})
    assert answer.error["param"] == "stream_options.include_obfuscation"
    assert server.http.chat(stream=True, stream_options={"x": 1}).error["param"] == "stream_options.x"
    fine = server.http.chat(stream=True, stream_options={"include_usage": None, "include_obfuscation": False})
    assert fine.status == 200


def test_conflicting_lengths(server: Running) -> None:
    assert server.http.chat(max_tokens=3, max_completion_tokens=4).error["param"] == "max_tokens"
    assert server.http.chat(max_tokens=3, max_completion_tokens=3).status == 200


def test_too_long(server: Running, client: openai.OpenAI) -> None:
    answer = server.http.chat(messages=[{"role": "user", "content": "x" * 600}])
    assert (answer.status, answer.error["code"]) == (400, "context_length_exceeded")
    assert answer.error["param"] == "messages"
    assert server.http.complete(prompt="x" * 600).error["param"] == "prompt"
    with pytest.raises(openai.BadRequestError, match="600"):
        client.completions.create(model="echo", prompt="x" * 600)


def test_hopelessly_long_is_not_even_tokenised(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pagoda.server.desk.CHEAP_TEXT", 100)
    monkeypatch.setattr(ByteTokenizer, "encode_prompt", None)
    text = "x" * (512 * 5 + 1)
    part = [{"type": "text", "text": text}]
    for answer, param in (
        (server.http.complete(prompt=[text, "a"]), "prompt"),
        (server.http.chat(messages=[{"role": "user", "content": text}]), "messages"),
        (server.http.chat(messages=[{"role": "user", "content": part}]), "messages"),
    ):
        assert (answer.status, answer.error["code"], answer.error["param"]) == (400, "context_length_exceeded", param)
        assert "2561 characters" in answer.error["message"]


def test_unknown_model(server: Running, client: openai.OpenAI) -> None:
    answer = server.http.chat(model="gpt-4")
    assert (answer.status, answer.error["code"], answer.error["param"]) == (404, "model_not_found", "model")
    with pytest.raises(openai.NotFoundError, match="echo"):
        client.completions.create(model="gpt-4", prompt="x")


BAD_BODIES = [
    (b"", "truncated"),
    (b"{", "truncated"),
    (b"[]", "object"),
    (b'"x"', "object"),
    (b'{"model":"echo"}x', "byte 17"),
    (b'{"temperature":NaN}', "byte 15"),
    (b'{"temperature":Infinity}', "byte 15"),
    (b'{"temperature":1e999}', "out of range"),
    (b'{"model":"\xff"}', "UTF-8"),
    (b"\xff\xfe", "byte 0"),
    (b"[" * 20_000, "depth"),
]


@pytest.mark.parametrize(("body", "where"), BAD_BODIES)
def test_bad_json_says_where(server: Running, body: bytes, where: str) -> None:
    for path in ("/v1/chat/completions", "/v1/completions"):
        answer = server.http.ask("POST", path, body)
        assert answer.status == 400
        assert where in answer.error["message"]


def test_lone_surrogate(server: Running) -> None:
    for body in (b'{"model":"echo","prompt":"a\\ud800"}', b'{"model":"echo","prompt":"\\udc00a"}'):
        assert server.http.ask("POST", "/v1/completions", body).status == 400


def test_body_over_the_cap(server: Running) -> None:
    answer = server.http.complete(prompt="x" * 200_000)
    assert (answer.status, answer.error["code"]) == (413, "body_too_large")


def test_chunked_body_over_the_cap(server: Running) -> None:
    connection = server.http.connect()
    connection.request("POST", "/v1/completions", iter([b"x" * 60_000] * 3), encode_chunked=True)
    assert connection.getresponse().status == 413
    connection.close()


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/", 404),
        ("GET", "/v1/nothing", 404),
        ("POST", "/v1/embeddings", 404),
        ("GET", "/v1/chat/completions", 405),
        ("DELETE", "/v1/models", 405),
        ("PUT", "/health", 405),
    ],
)
def test_wrong_path_or_method(server: Running, method: str, path: str, status: int) -> None:
    answer = server.http.ask(method, path)
    assert answer.status == status
    assert path in answer.error["message"]
    assert ("allow" in answer.headers) == (status == 405)
