"""Keys, their limits, and targets over HTTP: who may call, how much, and what is said to those who may not."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pagoda.config import SchedulerConfig, ServerConfig
from pagoda.engine import Engine
from pagoda.errors import InvalidConfig, TargetMissed
from pagoda.obs.metrics import PrometheusObserver
from pagoda.server import keys as keys_module
from pagoda.server.errors import HttpFailure, describe, retry_after
from pagoda.server.identity import one_tenant
from pagoda.server.keys import KeyFile, new_key, read_keys
from pagoda.server.limits import Limits, Meter
from server.conftest import MODEL, Running, serving
from server.fakes import ByteTokenizer, EchoRunner
from server.rawhttp import Http
from server.test_metrics import values

Open = Callable[..., Running]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "keys.toml"


@pytest.fixture
def start(path: Path) -> Iterator[Open]:
    """Opens servers over the real engine and the echoing machine room, with the keys of `path` if there are any."""
    with ExitStack() as stack:

        def begin(config: ServerConfig | None = None, **options: Any) -> Running:
            runner, observer = EchoRunner(400), PrometheusObserver()
            engine = Engine(runner, ByteTokenizer(), SchedulerConfig(**options), observer)  # type: ignore[arg-type]
            engine.start()
            stack.callback(engine.close)
            stack.callback(runner.release)
            identify = KeyFile(path) if path.exists() else one_tenant
            config = config or ServerConfig(port=0, max_output_tokens=200)
            running = stack.enter_context(serving(engine, ByteTokenizer(), MODEL, config, observer, identify))
            running.runner = runner
            return running

        yield begin


def as_key(server: Running, key: str) -> Http:
    return Http(server.url, {"authorization": f"Bearer {key}"})


def test_no_key_and_wrong_keys_are_refused(start: Open, path: Path) -> None:
    key, admin = new_key(path, "alice"), new_key(path, "root", administrator=True)
    assert key not in path.read_text()
    assert path.stat().st_mode & 0o777 == 0o600
    server = start()
    for http in (server.http, as_key(server, "x"), as_key(server, key[:-1])):
        for answer in (http.chat(), http.complete(), http.get("/v1/models"), http.get("/metrics")):
            assert answer.status == 401
            assert answer.headers["www-authenticate"] == "Bearer"
            assert answer.json["error"]["code"] == "invalid_api_key"
    assert as_key(server, key).chat().status == 200
    assert as_key(server, key).get("/v1/models").status == 200
    assert as_key(server, key).get("/metrics").status == 403
    assert as_key(server, admin).get("/metrics").status == 200
    assert server.http.get("/health").status == 200, "probes have no keys"


def test_keys_are_taken_and_dropped_without_a_restart(
    start: Open, path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(keys_module, "LOOK_S", 0.0)
    first = new_key(path, "first")
    server = start()
    server.runner.step_s = 0.01
    with ThreadPoolExecutor(1) as pool:  # under load: what is under way goes on
        long = pool.submit(as_key(server, first).complete, prompt="x" * 30, max_tokens=100, ignore_eos=True)
        second = new_key(path, "second")
        assert as_key(server, second).complete().status == 200
        entries = path.read_text().split("[keys.")
        path.write_text("[keys." + entries[2])
        assert as_key(server, first).complete().status == 401
        assert as_key(server, second).complete().status == 200
        path.write_text("[keys.broken]\nsha256 = 5\n")
        assert as_key(server, second).complete().status == 200, "a broken file changes nothing"
        assert "the keys stay as they were" in caplog.text
        assert long.result().status == 200


def test_concurrency_is_limited_by_key(start: Open, path: Path) -> None:
    few, many = new_key(path, "few"), new_key(path, "many")
    path.write_text(path.read_text().replace('[keys."few"]', '[keys."few"]\nmax_concurrent = 2'))
    server = start()
    server.runner.step_s = 0.02
    with ThreadPoolExecutor(6) as pool:
        calls = [pool.submit(as_key(server, few).complete, max_tokens=30, ignore_eos=True) for _ in range(4)]
        others = [pool.submit(as_key(server, many).complete, max_tokens=5, ignore_eos=True) for _ in range(2)]
        statuses = sorted(call.result().status for call in calls)
        assert statuses == [200, 200, 429, 429]
        assert [other.result().status for other in others] == [200, 200]
    refused = next(call.result() for call in calls if call.result().status == 429)
    assert refused.json["error"]["code"] == "concurrency_limit"
    assert refused.json["error"]["type"] == "rate_limit_error"
    assert int(refused.headers["retry-after"]) >= 1
    assert values(server.app.state.observer)["pagoda_requests_refused_total{cause=concurrency_limit}"] == 2
    meter: Meter = server.app.state.desk.meter
    meter.check()
    assert meter._open == {}
    assert as_key(server, few).complete().status == 200


def test_a_stream_that_is_left_gives_its_place_back(start: Open, path: Path) -> None:
    key = new_key(path, "k")
    path.write_text(path.read_text() + "max_concurrent = 1\n")
    server = start()
    server.runner.step_s = 0.01
    http = as_key(server, key)
    with http.streaming(prompt="x" * 50, max_tokens=190, ignore_eos=True) as lines:
        next(lines)
        assert http.complete().status == 429
    deadline = time.monotonic() + 5
    while (status := http.complete(max_tokens=1).status) == 429 and time.monotonic() < deadline:
        time.sleep(0.02)
    assert status == 200


def test_tokens_are_a_bucket() -> None:
    now = [100.0]
    meter, limits = Meter(lambda: now[0]), Limits(tokens_per_minute=600)
    ticket = meter.open("a", limits, 400)
    ticket.spend(500)
    ticket.close()
    ticket.close()
    meter.check()
    with pytest.raises(HttpFailure, match="600 tokens a minute; 0 are left, and the prompt has 10") as caught:
        meter.open("a", limits, 10)
    assert caught.value.retry_after == 31
    now[0] += 31
    meter.open("a", limits, 10).close()
    meter.open("b", limits, 600).close()
    now[0] += 10_000
    meter.open("a", limits, 5000).close()
    meter.check()


def test_outputs_are_capped_by_key_and_path(start: Open, path: Path) -> None:
    key = new_key(path, "k")
    path.write_text(path.read_text() + 'max_output_tokens = 9\noutput_caps = { "/v1/completions" = 4 }\n')
    http = as_key(start(), key)
    assert http.complete(max_tokens=50, ignore_eos=True).json["usage"]["completion_tokens"] == 4
    assert http.chat(max_tokens=50, ignore_eos=True).json["usage"]["completion_tokens"] == 9


def test_loops_are_ended_by_request_and_by_key(start: Open, path: Path) -> None:
    """The echo of one letter, over and over, is a loop of four tokens."""
    key, plain = new_key(path, "k"), new_key(path, "plain")
    path.write_text(path.read_text().replace('[keys."k"]', '[keys."k"]\nrepetition_stop = 5'))
    server = start()
    body = {"prompt": "x", "max_tokens": 60, "ignore_eos": True}
    ended = as_key(server, key).complete(**body).json["choices"][0]
    assert (ended["finish_reason"], ended["text"]) == ("repetition", "[0]x" * 5)
    assert as_key(server, key).complete(**body, repetition_stop=0).json["choices"][0]["finish_reason"] == "length"
    other = as_key(server, plain)
    assert other.complete(**body).json["choices"][0]["finish_reason"] == "length"
    assert other.complete(**body, repetition_stop=6).json["choices"][0]["text"] == "[0]x" * 6
    refused = other.complete(**body, repetition_stop=2)
    assert (refused.status, refused.json["error"]["param"]) == (400, "repetition_stop")


def test_what_cannot_keep_its_target_is_refused_with_the_figures(start: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    server = start(max_num_seqs=2)
    server.runner.step_s = 0.02
    assert server.http.complete(prompt="x" * 20, max_tokens=40, ignore_eos=True).status == 200
    with ThreadPoolExecutor(12) as pool:
        calls = [pool.submit(server.http.complete, max_tokens=60, ignore_eos=True) for _ in range(10)]
        deadline = time.monotonic() + 5
        while len(server.engine._requests) < 10 and time.monotonic() < deadline:
            time.sleep(0.01)
        began = time.perf_counter()
        with monkeypatch.context() as patch:
            patch.setattr(ByteTokenizer, "encode_prompt", None)
            refused = server.http.complete(slo={"ttft_ms": 100})
        assert time.perf_counter() - began < 1.0
        late = pool.submit(server.http.complete, slo={"ttft_ms": 100, "on_miss": "serve"}, priority=3)
        assert {call.result().status for call in calls} == {200}
        assert late.result().status == 200
    assert refused.status == 429
    error = refused.json["error"]
    assert error["code"] == "ttft_target"
    assert error["slo"]["target_ttft_ms"] == 100
    assert error["slo"]["predicted_ttft_ms"] > 100
    assert error["slo"]["queued_requests"] == 10
    assert int(refused.headers["retry-after"]) >= 1


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"slo": {"ttft_ms": 0}}, "slo"),
        ({"slo": {"ttft_ms": "1"}}, "slo.ttft_ms"),
        ({"slo": {"ttft": 1}}, "slo.ttft"),
        ({"slo": {"on_miss": "wait"}}, "slo.on_miss"),
        ({"priority": 11}, "priority"),
        ({"priority": 1.5}, "priority"),
    ],
)
def test_bad_targets(start: Open, body: dict[str, Any], param: str) -> None:
    refused = start().http.complete(**body)
    assert (refused.status, refused.json["error"]["param"]) == (400, param)


def test_when_to_try_again() -> None:
    missed = TargetMissed("m", 5200.0, 2000.0, 3, 40)
    status, body = describe(missed)
    assert (status, retry_after(missed, status)) == (429, 4)
    assert body.error.slo is not None
    assert retry_after(HttpFailure(404, "m", code="c"), 404) is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[keys.a]\n", "sha256"),
        ('[keys.a]\nsha256 = "00"\n', "64 hexadecimal digits"),
        ('[keys."a b"]\nsha256 = "%s"\n' % ("0" * 64), "a name has"),
        ('[keys.a]\nsha256 = "%s"\nmax_concurrent = 0\n' % ("0" * 64), "max_concurrent must be positive"),
        ('[keys.a]\nsha256 = "%s"\noutput_caps = { x = -1 }\n' % ("0" * 64), "output_caps of x must be positive"),
        ('[keys.a]\nsha256 = "%s"\nrepetition_stop = 2\n' % ("0" * 64), "repetition_stop must be 0 or at least 3"),
        ('[keys.a]\nsha256 = "%s"\nttft_ms = -1\n' % ("0" * 64), "ttft_ms must be a positive"),
        ('[keys.a]\nsha256 = "%s"\nspeed = 1\n' % ("0" * 64), "unknown field `speed`"),
        ("nonsense", "cannot be read"),
    ],
)
def test_bad_files_of_keys(path: Path, text: str, message: str) -> None:
    path.write_text(text)
    with pytest.raises(InvalidConfig, match=message):
        read_keys(path)


def test_names_of_keys(path: Path) -> None:
    new_key(path, "a.b-c_1")
    for name in ("a.b-c_1", "", "a b", 'x"]', "y" * 65):
        with pytest.raises(InvalidConfig):
            new_key(path, name)
    assert [key.caller.tenant for key in read_keys(path)] == ["a.b-c_1"]
    with pytest.raises(InvalidConfig, match="cannot be read"):
        KeyFile(path.parent / "none.toml")


def test_every_key_is_compared(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A match early in the file takes as long as one late, or none."""
    made = [new_key(path, f"k{i}") for i in range(5)]
    file, compared = KeyFile(path), []
    real = keys_module.hmac.compare_digest
    monkeypatch.setattr(keys_module.hmac, "compare_digest", lambda a, b: compared.append(1) or real(a, b))
    for key in (made[0], made[4]):
        compared.clear()
        request: Any = SimpleNamespace(headers={"authorization": f"bearer {key}"})
        file(request)
        assert len(compared) == 5


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.7", "example.org"])
def test_other_machines_need_keys(host: str) -> None:
    with pytest.raises(InvalidConfig, match="--insecure"):
        ServerConfig(host=host)
    assert ServerConfig(host=host, insecure=True).host == host
    assert ServerConfig(host=host, api_keys="keys.toml").host == host
    assert ServerConfig(host="127.0.0.5").host == "127.0.0.5"
