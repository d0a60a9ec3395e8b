"""OpenAI's published description: each field is served, neutral or refused; what an answer must have is there."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from pagoda.server.openai.chat import ChatFields
from pagoda.server.openai.completions import CompletionFields
from pagoda.server.openai.fields import NEUTRAL_CHAT, NEUTRAL_COMPLETIONS
from server.conftest import Running

SPEC = Path(__file__).parents[2].parent / "shared" / "openai" / "openapi.json"
pytestmark = pytest.mark.skipif(not SPEC.exists(), reason="OpenAI's published description is not here")


@pytest.fixture
def server(shared: Running) -> Running:
    """Nothing here changes the server."""
    return shared


@cache
def schemas() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(SPEC.read_text())["components"]["schemas"]
    return found


def resolved(schema: dict[str, Any]) -> dict[str, Any]:
    return schemas()[schema["$ref"].rpartition("/")[2]] if "$ref" in schema else schema


def properties(schema: dict[str, Any]) -> dict[str, Any]:
    schema = resolved(schema)
    found = dict(schema.get("properties", {}))
    for part in schema.get("allOf", []):
        found |= properties(part)
    return found


@pytest.mark.parametrize(
    ("name", "kind", "neutral"),
    [
        ("CreateChatCompletionRequest", ChatFields, NEUTRAL_CHAT),
        ("CreateCompletionRequest", CompletionFields, NEUTRAL_COMPLETIONS),
    ],
)
def test_every_field_is_served_neutral_or_refused(server: Running, name: str, kind: Any, neutral: Any) -> None:
    """A field of the description that we do not know must come back by its name, whatever its value."""
    ask = server.http.chat if kind is ChatFields else server.http.complete
    fields = set(properties(schemas()[name]))
    assert len(fields) > 15
    for field in fields - set(kind.__struct_fields__) - set(neutral):
        answer = ask(**{field: {"some": "thing"}})
        assert (answer.status, answer.error["param"]) == (400, field)
        assert ask(**{field: None}).status == 200


def missing(schema: dict[str, Any], value: Any, where: str = "$") -> list[str]:
    """Paths of required properties that `value` lacks, and of values outside an enumeration."""
    schema = resolved(schema)
    if value is None or "anyOf" in schema or "oneOf" in schema:
        options = [each for each in schema.get("anyOf", schema.get("oneOf", [])) if each.get("type") != "null"]
        return [] if value is None or not options else min((missing(each, value, where) for each in options), key=len)
    found = []
    if isinstance(value, dict):
        found += [f"{where}.{name}" for name in schema.get("required", []) if name not in value]
        for name, part in properties(schema).items():
            if name in value:
                found += missing(part, value[name], f"{where}.{name}")
    elif isinstance(value, list):
        for place, each in enumerate(value):
            found += missing(schema.get("items", {}), each, f"{where}[{place}]")
    elif "enum" in schema and value not in schema["enum"]:
        found.append(f"{where}: {value!r}")
    return found


def test_the_walk_sees_what_is_missing() -> None:
    bad = {"choices": [{"message": {"content": "x"}, "finish_reason": "tired", "index": 0}], "object": "x"}
    assert sorted(missing(schemas()["CreateChatCompletionResponse"], bad)) == [
        "$.choices[0].finish_reason: 'tired'",
        "$.choices[0].logprobs",
        "$.choices[0].message.refusal",
        "$.choices[0].message.role",
        "$.created",
        "$.id",
        "$.model",
        "$.object: 'x'",
    ]


@pytest.mark.parametrize("options", [{}, {"n": 2}, {"logprobs": True, "top_logprobs": 2}, {"max_tokens": 1}])
def test_chat_answers_have_what_is_required(server: Running, options: dict[str, Any]) -> None:
    assert missing(schemas()["CreateChatCompletionResponse"], server.http.chat(**options).json) == []
    stream = server.http.chat(stream=True, stream_options={"include_usage": True}, **options).events
    for chunk in stream[:-1]:
        assert missing(schemas()["CreateChatCompletionStreamResponse"], chunk) == []


@pytest.mark.parametrize("options", [{}, {"n": 2}, {"logprobs": 2}, {"max_tokens": 1}])
def test_completions_have_what_is_required(server: Running, options: dict[str, Any]) -> None:
    assert missing(schemas()["CreateCompletionResponse"], server.http.complete(**options).json) == []


def test_models_and_errors_have_what_is_required(server: Running) -> None:
    assert missing(schemas()["ListModelsResponse"], server.http.get("/v1/models").json) == []
    assert missing(schemas()["Model"], server.http.get("/v1/models/echo").json) == []
    assert missing(schemas()["ErrorResponse"], server.http.get("/nothing").json) == []
