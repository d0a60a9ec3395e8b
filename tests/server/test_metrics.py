"""What `/metrics` says, and that the table's names are such as Prometheus and its linter take."""

from __future__ import annotations

import re
import time

import pytest
from prometheus_client.parser import text_string_to_metric_families

from pagoda.obs.metrics import METRICS, PrometheusObserver
from pagoda.obs.observer import EngineState, Observer
from pagoda.plan import Capacity, Chunk, StepPlan, StepResult
from pagoda.types import (
    CacheCause,
    DiskFault,
    DiskReport,
    FinishReason,
    GenerateRequest,
    SamplingParams,
    Timings,
    TokenEvent,
)
from server.conftest import Running


def values(observer: PrometheusObserver) -> dict[str, float]:
    """Every sample by its name and labels."""
    found = {}
    for family in text_string_to_metric_families(observer.render()[0].decode()):
        for sample in family.samples:
            labels = ",".join(f"{name}={value}" for name, value in sorted(sample.labels.items()))
            found[f"{sample.name}{{{labels}}}" if labels else sample.name] = sample.value
    return found


def last_event(reason: FinishReason, tokens: int, timings: Timings) -> TokenEvent:
    return TokenEvent(
        "r", 0, (7,), "x", finish=reason, prompt_tokens=3, completion_tokens=tokens, cached_tokens=2, timings=timings
    )


def test_counts() -> None:
    made = PrometheusObserver()
    observer: Observer = made
    observer.arrived(GenerateRequest("r", (1, 2, 3), SamplingParams(max_tokens=4, seed=1), 0.0))
    plan = StepPlan(1, (Chunk(0, 0, (1, 2, 3), ((0,),), True),))
    observer.stepped(plan, StepResult(1, (), 0.03), EngineState(running=2, waiting=5, pages_used=6, pages_total=10))
    observer.emitted(TokenEvent("r", 0, (7,), "x"), None)
    observer.emitted(TokenEvent("r", 0, (8,), "y"), 0.02)
    observer.emitted(TokenEvent("r", 0), 0.02)
    observer.emitted(last_event(FinishReason.STOP, 3, Timings(0.1, 0.3, 0.7)), 0.04)
    observer.emitted(last_event(FinishReason.CANCELLED, 0, Timings(9.0, 9.0, 9.0)), None)
    observer.matched(GenerateRequest("r", tuple(range(9)), SamplingParams(max_tokens=4), 0.0), 3, CacheCause.EVICTED)
    observer.matched(GenerateRequest("s", (1, 2), SamplingParams(max_tokens=4), 0.0), 1, CacheCause.WHOLE)
    observer.refused("overloaded")
    observer.preempted("r")
    made.answered_with_error(400)
    seen = values(made)
    expected = {
        "pagoda_requests_total": 1,
        "pagoda_requests_refused_total{cause=overloaded}": 1,
        "pagoda_http_errors_total{status=400}": 1,
        "pagoda_sequences_finished_total{reason=stop}": 1,
        "pagoda_sequences_finished_total{reason=cancelled}": 1,
        "pagoda_prompt_tokens_total": 3,
        "pagoda_cached_prompt_tokens_total": 4,
        "pagoda_prefix_matches_total{cause=evicted}": 1,
        "pagoda_prefix_matches_total{cause=whole}": 1,
        "pagoda_prefix_missed_tokens_total{cause=evicted}": 5,
        "pagoda_prefix_missed_tokens_total{cause=whole}": 0,
        "pagoda_generation_tokens_total": 4,
        "pagoda_preemptions_total": 1,
        "pagoda_running_sequences": 2,
        "pagoda_waiting_sequences": 5,
        "pagoda_pages_used": 6,
        "pagoda_pages": 10,
        "pagoda_step_rows_sum": 3,
        "pagoda_step_seconds_sum": 0.03,
        "pagoda_queue_seconds_sum": 0.1,
        "pagoda_ttft_seconds_sum": 0.3,
        "pagoda_ttft_seconds_count": 1,
        "pagoda_e2e_seconds_sum": 0.7,
        "pagoda_tpot_seconds_sum": 0.2,
        "pagoda_itl_seconds_count": 2,
        "pagoda_itl_seconds_sum": 0.06,
    }
    assert {name: seen[name] for name in expected} == pytest.approx(expected)
    lookups = made.lookups()
    assert lookups.hit_rate == pytest.approx(4 / 9)
    assert lookups.requests == dict.fromkeys(CacheCause, 0) | {CacheCause.EVICTED: 1, CacheCause.WHOLE: 1}
    assert PrometheusObserver().lookups().hit_rate is None


def test_queues_between_steps() -> None:
    observer = PrometheusObserver()
    observer.queues(3, 4)
    assert values(observer)["pagoda_waiting_sequences"] == 4


def test_what_is_on_disk() -> None:
    observer = PrometheusObserver()
    faults = ((DiskFault.DAMAGED, 2), (DiskFault.DISK_FULL, 1))
    observer.disk(DiskReport(5, 8192, 2**20, 7, 3, 1, faults[:1], True, None, None))
    observer.disk(DiskReport(6, 4096, 2**20, 9, 3, 4, faults, False, 1e-5, 1e-3))
    seen = values(observer)
    expected = {
        "pagoda_disk_pages": 6,
        "pagoda_disk_bytes": 4096,
        "pagoda_disk_writing": 0,
        "pagoda_disk_saved_pages_total": 9,
        "pagoda_disk_restored_pages_total": 3,
        "pagoda_disk_dropped_pages_total": 4,
        "pagoda_disk_faults_total{cause=damaged}": 2,
        "pagoda_disk_faults_total{cause=disk_full}": 1,
    }
    assert {name: seen[name] for name in expected} == expected


def test_what_is_served() -> None:
    observer = PrometheusObserver()
    observer.serving("m", Capacity((5, 6), 16, 100, 10, "fp"))
    seen = values(observer)
    assert seen["pagoda_info{fingerprint=fp,model=m,page_size=16}"] == 1
    assert seen["pagoda_pages"] == 11


def test_two_observers_do_not_share() -> None:
    one, other = PrometheusObserver(), PrometheusObserver()
    one.preempted("r")
    assert values(other)["pagoda_preemptions_total"] == 0


@pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.name)
def test_names(metric: object) -> None:
    """Snake case, no colon, base units, `_total` on counters and on nothing else."""
    name, kind = metric.name, metric.kind.__name__  # type: ignore[attr-defined]
    assert re.fullmatch(r"pagoda_[a-z0-9_]+", name)
    assert name.endswith("_total") == (kind == "Counter")
    assert not re.search(r"_(ms|us|milliseconds|kb|mb|percent)\b", name)
    assert metric.help.endswith(".")  # type: ignore[attr-defined]


def test_vllms_names() -> None:
    """Its dashboards and routers find what they look for, colon and labels included."""
    observer = PrometheusObserver("vllm")
    observer.serving("m", Capacity((8,), 16, 100, 10, "fp"))
    plan = StepPlan(1, (Chunk(0, 0, (1, 2, 3), ((0,),), True),))
    observer.stepped(plan, StepResult(1, (), 0.03), EngineState(running=2, waiting=5, pages_used=6, pages_total=8))
    observer.emitted(last_event(FinishReason.STOP, 3, Timings(0.1, 0.3, 0.7)), 0.04)
    text, kind = observer.render("application/openmetrics-text; version=1.0.0")
    assert kind.startswith("text/plain; version=0.0.4")
    lines = text.decode().splitlines()
    labels = 'engine="0",model_name="m"'
    for line in (
        f"vllm:num_requests_running{{{labels}}} 2.0",
        f"vllm:num_requests_waiting{{{labels}}} 5.0",
        f"vllm:kv_cache_usage_perc{{{labels}}} 0.75",
        f"vllm:time_to_first_token_seconds_sum{{{labels}}} 0.3",
        f"vllm:generation_tokens_total{{{labels}}} 1.0",
        'vllm:request_success_total{engine="0",finished_reason="stop",model_name="m"} 1.0',
        f"vllm:iteration_tokens_total_sum{{{labels}}} 3.0",
        "# TYPE vllm:generation_tokens_total counter",
        "pagoda_pages 8.0",
    ):
        assert line in lines, line


def test_errors_of_predictions() -> None:
    observer = PrometheusObserver()
    plan = StepPlan(1, (Chunk(0, 0, (1,), ((0,),), True),))
    observer.stepped(plan, StepResult(1, (), 0.03), EngineState(step_error=-0.25))
    observer.emitted(last_event(FinishReason.STOP, 3, Timings(0.1, 0.4, 0.7, predicted=0.5)), 0.04)
    seen = values(observer)
    assert seen["pagoda_step_prediction_error_sum"] == 0.25
    assert seen["pagoda_ttft_prediction_error_sum"] == pytest.approx(0.25)


def test_every_row_is_built() -> None:
    text = PrometheusObserver().render()[0].decode()
    for metric in METRICS:
        assert f"# TYPE {metric.name} {metric.kind.__name__.lower()}" in text


def test_formats(server: Running) -> None:
    plain = server.http.get("/metrics")
    assert plain.headers["content-type"].startswith("text/plain")
    openmetrics = server.http.get("/metrics", accept="application/openmetrics-text; version=1.0.0")
    assert openmetrics.headers["content-type"].startswith("application/openmetrics-text")
    assert openmetrics.raw.endswith(b"# EOF\n")
    for text in (plain.raw, openmetrics.raw):
        assert b"pagoda_ttft_seconds_bucket" in text
        assert b":" not in b"".join(line for line in text.splitlines() if not line.startswith(b"#"))


def test_http_errors_are_counted(server: Running) -> None:
    server.http.chat(model="nope")
    server.http.chat(tools=[1])
    server.http.chat(n=0)
    seen = values(server.app.state.observer)
    assert seen["pagoda_http_errors_total{status=404}"] == 1
    assert seen["pagoda_http_errors_total{status=400}"] == 2


def test_a_token_costs_little() -> None:
    """Not a timed test but a bound far above the figure, about 5 us, that catches a new registry walk per token."""
    observer, event = PrometheusObserver(), TokenEvent("r", 0, (7,), "x")
    began = time.perf_counter()
    for _ in range(1000):
        observer.emitted(event, 0.01)
    assert (time.perf_counter() - began) / 1000 < 500e-6
