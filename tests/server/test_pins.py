"""Pins, explanations and tenants over HTTP, on the real engine: what one tenant has is nothing to another.

Nothing here looks at a clock: what was found is counted in tokens (`cached_tokens`).
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from starlette.requests import Request

from pagoda.config import SchedulerConfig, ServerConfig
from pagoda.engine import Engine
from pagoda.obs.metrics import PrometheusObserver
from pagoda.server.identity import Caller, one_tenant
from server.conftest import MODEL, Running, serving
from server.fakes import ByteTokenizer, EchoRunner
from server.rawhttp import Answer
from server.test_metrics import values

SYSTEM = [{"role": "system", "content": "You are the support desk of a small shop that sells pagodas."}]
OPENING = len("system: You are the support desk of a small shop that sells pagodas.\nuser: ")
PLAIN = "A plain prompt of two pages, and some more."
CONFIG = ServerConfig(port=0, max_output_tokens=20, max_body_bytes=100_000, tenant_pin_tokens=150)


def by_header(request: Request) -> Caller:
    """Who calls, for tests: two tenants and an administrator."""
    name = request.headers.get("x-caller", "")
    return Caller(name, name == "root")


class Many(Running):
    """A server whose callers say who they are."""

    def as_(self, caller: str, method: str, path: str, body: Any = None, **headers: str) -> Answer:
        return self.http.ask(method, path, body, {"x-caller": caller, **headers})

    def complete(self, caller: str, prompt: Any, **fields: Any) -> Any:
        body = {"model": MODEL, "prompt": prompt, "max_tokens": 1} | fields
        answer = self.as_(caller, "POST", "/v1/completions", body)
        assert answer.status == 200, answer.raw
        return answer.json

    def cached(self, caller: str, prompt: Any) -> int:
        found: int = self.complete(caller, prompt)["usage"]["prompt_tokens_details"]["cached_tokens"]
        return found

    def pin(self, caller: str, **fields: Any) -> Any:
        answer = self.as_(caller, "POST", "/v1/cache/pins", fields)
        assert answer.status == 201, answer.raw
        return answer.json

    def crowd(self) -> None:
        """So many others that whatever can be evicted is."""
        for i in range(20):
            self.complete(f"crowd {i}", f"{i} " * 90)


@pytest.fixture
def server() -> Iterator[Many]:
    yield from opened()


def opened(identify: Any = by_header, **options: Any) -> Iterator[Many]:
    observer = PrometheusObserver()
    engine = Engine(EchoRunner(64), ByteTokenizer(), SchedulerConfig(**options), observer)  # type: ignore[arg-type]
    engine.start()
    with serving(engine, ByteTokenizer(), MODEL, CONFIG, observer, identify) as running:
        yield Many(running.engine, running.url, running.http, running.app)
    engine.close()


# Pins.


def test_a_pin_as_messages_is_what_every_conversation_shares(server: Many) -> None:
    pin = server.pin("root", messages=SYSTEM, name="support")
    assert pin["id"] == "pin-1"
    assert (pin["tokens"], pin["pages"], pin["bytes"], pin["hits"]) == (OPENING, -(-OPENING // 16), None, 0)
    assert (pin["owner"], pin["shared"], pin["name"], pin["object"]) == ("root", True, "support", "cache.pin")
    assert pin["created"] > 1_700_000_000
    server.crowd()
    for caller in ("a", "b"):
        chat = {"model": MODEL, "max_tokens": 1, "messages": [*SYSTEM, {"role": "user", "content": f"I am {caller}"}]}
        usage = server.as_(caller, "POST", "/v1/chat/completions", chat).json["usage"]
        assert usage["prompt_tokens_details"]["cached_tokens"] == OPENING
    assert server.as_("root", "GET", "/v1/cache/pins/pin-1").json["hits"] == 2


def test_a_pin_as_text_and_as_token_ids(server: Many) -> None:
    assert server.pin("root", text=PLAIN)["tokens"] == len(PLAIN)
    assert server.pin("root", token_ids=[1, 2, 3])["tokens"] == 3
    server.crowd()
    assert server.cached("a", PLAIN + " More") == len(PLAIN)
    assert server.cached("a", [1, 2, 3, 4]) == 3


def test_pinning_again_is_the_same_pin(server: Many) -> None:
    pins = [server.pin("root", text=PLAIN) for _ in range(3)]
    assert {pin["id"] for pin in pins} == {pins[0]["id"]}
    assert len(server.as_("root", "GET", "/v1/cache/pins").json["data"]) == 1


def test_a_pin_that_was_let_go_is_gone(server: Many) -> None:
    """llama.cpp#26676: success is reported and nothing done."""
    pin = server.pin("root", text=PLAIN)
    assert server.as_("root", "DELETE", f"/v1/cache/pins/{pin['id']}").json == {
        "id": pin["id"], "deleted": True, "object": "cache.pin",
    }  # fmt: skip
    assert server.as_("root", "GET", "/v1/cache/pins").json == {"data": [], "object": "list"}
    assert server.as_("root", "DELETE", f"/v1/cache/pins/{pin['id']}").error["code"] == "pin_not_found"
    server.crowd()
    assert server.cached("root", PLAIN) == 0


@pytest.mark.parametrize(
    ("body", "status", "param", "words"),
    [
        ({}, 400, None, "give one of messages, text, token_ids, got none"),
        ({"text": "x", "token_ids": [1]}, 400, "token_ids", "got text and token_ids"),
        ({"text": ""}, 400, "text", "must be a text, and not empty"),
        ({"text": 7}, 400, "text", "must be a text"),
        ({"token_ids": [1, True]}, 400, "token_ids", "must be a list of token ids"),
        ({"token_ids": [1, 99999]}, 400, "token_ids", "token ids run from 0 to 259, got 99999"),
        ({"messages": [{"role": "wizard", "content": "x"}]}, 400, "messages[0].role", "must be one of"),
        ({"messages": ["x"]}, 400, "messages", "must be a list of messages"),
        ({"text": "x", "nam": "y"}, 400, "nam", "an opening has no field 'nam'"),
        ({"text": "x", "name": 5}, 400, "name", "name must be a string"),
        ({"text": "x", "shared": "yes"}, 400, "shared", "shared must be true or false"),
        ({"text": "x" * 550}, 400, "text", "the prompt has 550 tokens and the context holds 512"),
        ({"text": "x" * 900}, 400, "text", "text has about 900 tokens and the context holds 512"),
        ({"text": "x" * 5000}, 400, "text", "has about 5000 tokens"),
        ({"messages": [{"role": "user", "content": "x" * 900}]}, 400, "messages", "messages has about 907 tokens"),
        ([1], 400, None, "must be a JSON object"),
        (b"{", 400, None, "not valid JSON"),
    ],
)
def test_what_cannot_be_pinned_is_refused(server: Many, body: Any, status: int, param: str, words: str) -> None:
    answer = server.as_("root", "POST", "/v1/cache/pins", body)
    assert (answer.status, answer.error["param"]) == (status, param)
    assert words in answer.error["message"]
    assert server.as_("root", "GET", "/v1/cache/pins").json["data"] == []


def test_a_pin_that_does_not_fit_is_refused_with_the_arithmetic(server: Many) -> None:
    server.pin("root", text="x" * 500)
    answer = server.as_("root", "POST", "/v1/cache/pins", {"text": "y" * 100})
    assert (answer.status, answer.error["code"]) == (409, "pins_full")
    told = "100 tokens to pin need 7 KV pages of 16 tokens; of 64 pages 32 are pinned, and 32 must be left"
    assert told in answer.error["message"]


def test_without_the_cache_nothing_can_be_pinned_and_why_is_told() -> None:
    for server in opened(prefix_cache=False):
        answer = server.as_("root", "POST", "/v1/cache/pins", {"text": PLAIN})
        assert answer.status == 400
        assert "without its prefix cache" in answer.error["message"]
        for _ in range(2):
            (told,) = server.complete("a", PLAIN, explain=True)["explain"]["cache"]
            assert (told["matched_tokens"], told["cause"]) == (0, "off")


# Tenants.


def test_prefixes_of_one_tenant_are_nothing_to_another(server: Many) -> None:
    """TensorRT-LLM#8813: text of other prompts appears; here not even how much of it is kept does."""
    assert server.cached("a", PLAIN) == 0
    (b,) = server.complete("b", PLAIN, explain=True)["explain"]["cache"]
    (nobody,) = server.complete("c", "Nothing of this kind was asked", explain=True)["explain"]["cache"]
    assert (b["matched_tokens"], b["cause"], b["why"], b["kept"]) == (0, "never_seen", nobody["why"], None)
    assert server.cached("a", PLAIN) == server.cached("b", PLAIN) == len(PLAIN) - 1
    seen = values(server.app.state.observer)
    assert seen["pagoda_prefix_matches_total{cause=other_key}"] == 1, "only the counters know"


def test_what_is_kept_instead_is_shown_only_if_it_is_the_tenants_own(server: Many) -> None:
    secret, mine = "You are a helpful tyrant, Bob.", "You are a helpful assistant."
    server.complete("b", secret)
    server.pin("b", text=secret)
    server.pin("root", text="You are a helpful pinned text.")
    (told,) = server.complete("a", mine, explain=True)["explain"]["cache"]
    assert (told["matched_tokens"], told["cause"], told["kept"]) == (18, "different_token", None)
    (told,) = server.complete("a", "You are a helpful robot.", explain=True)["explain"]["cache"]
    assert (told["prompt"], told["kept"]) == ("You are a helpful |robot.", "You are a helpful |assistan")
    assert "tyrant" not in str(told)


def test_a_tenants_own_pin_serves_that_tenant_only(server: Many) -> None:
    pin = server.pin("a", text=PLAIN, name="mine")
    assert (pin["owner"], pin["shared"]) == ("a", False)
    server.crowd()
    assert server.cached("b", PLAIN + "!") == 0
    assert server.cached("a", PLAIN + "!") == len(PLAIN)
    assert server.as_("a", "GET", "/v1/cache/pins/pin-1").json["hits"] == 1


def test_an_administrators_pin_need_not_be_shared(server: Many) -> None:
    server.pin("root", text=PLAIN, shared=False)
    server.crowd()
    assert server.cached("b", PLAIN + "!") == 0
    assert server.cached("root", PLAIN + "!") == len(PLAIN)


def test_pins_are_seen_and_deleted_by_their_owner_and_by_administrators(server: Many) -> None:
    mine, everyones = server.pin("a", text=PLAIN)["id"], server.pin("root", text="Everyone's text.")["id"]

    def seen(caller: str) -> list[str]:
        return [pin["id"] for pin in server.as_(caller, "GET", "/v1/cache/pins").json["data"]]

    assert (seen("a"), seen("b"), seen("root")) == ([mine], [], [mine, everyones])
    for caller, pin in (("b", mine), ("a", everyones), ("b", "pin-99")):
        for method in ("GET", "DELETE"):
            answer = server.as_(caller, method, f"/v1/cache/pins/{pin}")
            assert (answer.status, answer.error["code"]) == (404, "pin_not_found")
    assert server.as_("a", "DELETE", f"/v1/cache/pins/{mine}").status == 200
    assert server.as_("root", "DELETE", f"/v1/cache/pins/{everyones}").status == 200


def test_only_an_administrator_shares(server: Many) -> None:
    answer = server.as_("a", "POST", "/v1/cache/pins", {"text": PLAIN, "shared": True})
    assert (answer.status, answer.error["code"], answer.error["param"]) == (403, "administrators_only", "shared")


def test_one_tenant_cannot_pin_the_whole_pool(server: Many) -> None:
    """Two at once are counted too; another tenant's are not."""
    texts = ["x" * 90, "y" * 90]
    with ThreadPoolExecutor(2) as pool:
        answers = list(pool.map(lambda text: server.as_("a", "POST", "/v1/cache/pins", {"text": text}), texts))
    assert sorted(answer.status for answer in answers) == [201, 409]
    refused = max(answers, key=lambda answer: answer.status)
    assert (
        "90 tokens to pin, and of the 150 that one tenant may pin for itself 90 are taken" in refused.error["message"]
    )
    assert server.pin("b", text="x" * 90)["tokens"] == 90


def test_the_cache_is_for_administrators(server: Many) -> None:
    server.pin("a", text=PLAIN)
    server.cached("a", PLAIN + "1")
    for method in ("GET", "DELETE"):
        answer = server.as_("a", method, "/v1/cache")
        assert (answer.status, answer.error["code"]) == (403, "administrators_only")
    found = server.as_("root", "GET", "/v1/cache").json
    pages = found["pages"]
    assert pages["total"] == 64 == sum(pages[state] for state in ("used", "pinned", "cached", "free"))
    assert pages["pinned"] == 3 == found["maps"][0].count("p")
    assert found["asked"]["found_tokens"] == len(PLAIN)
    assert found["asked"]["requests"]["never_seen"] >= 1
    assert 0 < found["asked"]["hit_rate"] < 1
    assert [pin["owner"] for pin in found["pins"]] == ["a"]
    assert values(server.app.state.observer)["pagoda_pages_pinned"] == 3


def test_clearing(server: Many) -> None:
    server.pin("a", text=PLAIN)
    server.cached("b", "something else " * 3)
    assert server.as_("root", "DELETE", "/v1/cache?pins=perhaps").error["param"] == "pins"
    assert server.as_("root", "DELETE", "/v1/cache").json["pins"] == 0
    (told,) = server.complete("b", "something else " * 3, explain=True)["explain"]["cache"]
    assert (told["matched_tokens"], told["cause"]) == (0, "evicted")
    assert server.cached("a", PLAIN + "!") == len(PLAIN)
    assert server.as_("root", "DELETE", "/v1/cache?pins=true").json["pins"] == 1
    assert server.cached("a", PLAIN + "!") == 0
    assert server.as_("root", "GET", "/v1/cache").json["pages"]["pinned"] == 0


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "http://evil.example"},
        {"x-forwarded-for": "1.2.3.4"},
        {"forwarded": "for=1.2.3.4"},
        {"host": "evil.example:80"},
    ],
)
def test_neither_a_browsers_page_nor_a_proxys_caller_administers(headers: dict[str, str]) -> None:
    for server in opened(one_tenant):
        assert server.http.get("/v1/cache").status == 200
        assert server.http.get("/v1/cache", host=f"localhost:{server.url.rpartition(':')[2]}").status == 200
        assert server.http.get("/v1/cache", **headers).status == 403
        assert server.http.ask("POST", "/v1/cache/pins", {"text": PLAIN}, headers).json["shared"] is False


# Why.


def told(server: Many, prompt: str, **fields: Any) -> Any:
    return server.complete("a", prompt, explain=True, **fields)["explain"]["cache"][0]


def test_a_whole_answer_explains_every_prompt(server: Many) -> None:
    server.complete("a", PLAIN)
    answer = server.complete("a", [PLAIN, "new"], explain=True, n=2)
    first, second = answer["explain"]["cache"]
    assert first == {
        "prompt_tokens": len(PLAIN),
        "matched_tokens": len(PLAIN) - 1,
        "matched_characters": len(PLAIN) - 1,
        "pages": 3,
        "saved_s": None,
        "cause": "whole",
        "why": "all but the last token was found; that one is always computed",
        "prompt": f"{PLAIN[:-1]}|.",
        "kept": None,
    }
    assert (second["matched_tokens"], second["cause"], second["prompt"]) == (0, "different_token", "|new")
    assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == len(PLAIN) - 1


def test_characters_are_counted_not_bytes(server: Many) -> None:
    server.complete("a", "naïve ☃ day")
    why = told(server, "naïve ☃ night and so on and on")
    assert why["matched_characters"] == len("naïve ☃ ")
    assert why["matched_tokens"] == len("naïve ☃ ".encode())
    assert (why["prompt"], why["kept"]) == ("naïve ☃ |night and so...", "naïve ☃ |day")


def test_a_match_that_ends_within_a_character(server: Many) -> None:
    server.complete("a", "snow ☃")
    why = told(server, "snow ☂")
    assert (why["matched_characters"], why["matched_tokens"]) == (5, 7)


def test_seconds_saved_are_told_once_a_prompt_was_measured(server: Many) -> None:
    server.complete("a", "x" * 100)
    why, token_s = told(server, "x" * 100), server.engine.prompt_token_s()
    assert token_s is not None
    assert why["saved_s"] == pytest.approx(99 * token_s, rel=0.2)  # measured on, meanwhile


@pytest.mark.parametrize("usage", [False, True])
def test_a_stream_explains_in_its_last_chunk(server: Many, usage: bool) -> None:
    server.complete("a", PLAIN)
    options = {"stream_options": {"include_usage": True}} if usage else {}
    for path, prompt in (("completions", {"prompt": PLAIN}), ("chat/completions", {"messages": SYSTEM})):
        body = {"model": MODEL, "stream": True, "max_tokens": 2, **prompt, **options}
        events = server.as_("a", "POST", f"/v1/{path}", body, **{"x-pagoda-explain": "1"}).events
        last = events[-2]
        assert last["choices"] == []
        assert ("usage" in last) == usage
        assert last["explain"]["cache"][0]["cause"] in ("whole", "different_token")
        assert not any("explain" in event for event in events[:-2])


def test_openais_client_takes_an_explanation(server: Many) -> None:
    with server.client() as client:
        ask = client.chat.completions.create
        asked: Any = {"model": MODEL, "messages": SYSTEM, "max_tokens": 2, "extra_body": {"explain": True}}
        extra = ask(**asked).model_extra
        assert extra is not None
        assert extra["explain"]["cache"][0]["cause"] == "never_seen"
        chunks = list(ask(**asked, stream=True))
        assert chunks[-1].model_extra is not None
        assert chunks[-1].model_extra["explain"]["cache"][0]["cause"] == "whole"


def test_no_explanation_unless_it_is_asked_for(server: Many) -> None:
    assert "explain" not in server.complete("a", PLAIN)
    assert "explain" not in server.complete("a", PLAIN, explain=False)
    body = {"model": MODEL, "prompt": PLAIN, "max_tokens": 1}
    answer = server.as_("a", "POST", "/v1/completions", body, **{"x-pagoda-explain": "0"})
    assert "explain" not in answer.json
    answer = server.as_("a", "POST", "/v1/completions", body, **{"x-pagoda-explain": "maybe"})
    assert (answer.status, answer.error["param"]) == (400, "X-Pagoda-Explain")
    assert server.as_("a", "POST", "/v1/completions", body | {"explain": "yes"}).error["param"] == "explain"


def test_hits_and_misses_below_a_page_are_told(server: Many) -> None:
    """vllm#51198, #53749: no hits below a block, nothing in the log that says so."""
    assert server.cached("a", "12345") == 0
    assert (told(server, "123x")["matched_tokens"], told(server, "123x")["cause"]) == (3, "whole")
    assert told(server, "12y4")["cause"] == "different_token"
    seen = values(server.app.state.observer)
    assert seen["pagoda_prefix_missed_tokens_total{cause=never_seen}"] == 4
    assert seen["pagoda_prefix_missed_tokens_total{cause=different_token}"] == 1


def test_an_evicted_prompt_is_told_so(server: Many) -> None:
    server.complete("a", PLAIN)
    server.crowd()
    assert told(server, PLAIN)["cause"] == "evicted"
