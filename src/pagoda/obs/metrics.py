"""Everything that is counted, in one table, and the observer that counts it.

Knows the engine's doors and Prometheus; knows nothing of HTTP. Names have no colon, so that every scraper stores them
as they stand here; units are base units. One `observe` costs about 2 us, and a token costs two.
"""

from __future__ import annotations

import threading
from collections import Counter as Counts
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.exposition import choose_encoder

from pagoda.obs import vllm_names
from pagoda.obs.observer import EngineState
from pagoda.plan import Capacity, StepPlan, StepResult
from pagoda.types import CacheCause, DiskReport, GenerateRequest, TokenEvent

LONG = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 80, 160, 320)
"""Seconds: waiting times, from an idle engine's to a crowded one's."""
SHORT = (0.001, 0.0025, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.04, 0.06, 0.08, 0.12, 0.2, 0.5, 1, 2.5)
"""Seconds: gaps between tokens, and steps."""
ERRORS = (0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.5, 1, 2, 5)
COUNTS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)


@dataclass(frozen=True, slots=True)
class Metric:
    """A row of the table."""

    name: str
    kind: type[Counter] | type[Gauge] | type[Histogram]
    help: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Lookups:
    """What the prefix cache was asked for, and what came of it."""

    found_tokens: int
    requests: dict[CacheCause, int]
    """By why no more was found."""
    missed_tokens: dict[CacheCause, int]
    """By why they were not found; no prompt's last token is among them."""

    @property
    def hit_rate(self) -> float | None:
        """Tokens found of those that could have been; None before the first."""
        asked = self.found_tokens + sum(self.missed_tokens.values())
        return self.found_tokens / asked if asked else None


METRICS = (
    Metric("pagoda_ttft_seconds", Histogram, "From arrival to the first token of a sequence.", (), LONG),
    Metric("pagoda_itl_seconds", Histogram, "Each single gap between tokens of a sequence.", (), SHORT),
    Metric("pagoda_tpot_seconds", Histogram, "Mean time per output token after the first, by sequence.", (), SHORT),
    Metric("pagoda_e2e_seconds", Histogram, "From arrival to the end of a sequence.", (), LONG),
    Metric("pagoda_queue_seconds", Histogram, "From arrival to the first step that had a chunk of it.", (), LONG),
    Metric("pagoda_request_prompt_tokens", Histogram, "Tokens of a request's prompt.", (), COUNTS),
    Metric("pagoda_sequence_completion_tokens", Histogram, "Tokens of a sequence's output.", (), COUNTS),
    Metric("pagoda_requests_total", Counter, "Requests accepted into the queue."),
    Metric("pagoda_requests_refused_total", Counter, "Requests that were not accepted, by cause.", ("cause",)),
    Metric("pagoda_http_errors_total", Counter, "Answers that were errors, by HTTP status.", ("status",)),
    Metric("pagoda_sequences_finished_total", Counter, "Sequences that ended, by finish reason.", ("reason",)),
    Metric("pagoda_prompt_tokens_total", Counter, "Prompt tokens of accepted requests."),
    Metric("pagoda_cached_prompt_tokens_total", Counter, "Prompt tokens whose KV was found in the cache."),
    Metric(
        "pagoda_prefix_matches_total", Counter, "Requests looked up in the cache, by why no more was found.", ("cause",)
    ),
    Metric(
        "pagoda_prefix_missed_tokens_total",
        Counter,
        "Prompt tokens that had to be computed (but the last, which always is), by why they were not found.",
        ("cause",),
    ),
    Metric("pagoda_generation_tokens_total", Counter, "Tokens generated."),
    Metric("pagoda_preemptions_total", Counter, "Sequences that lost their pages and were recomputed."),
    Metric("pagoda_running_sequences", Gauge, "Sequences that hold pages."),
    Metric("pagoda_waiting_sequences", Gauge, "Sequences that hold none."),
    Metric("pagoda_pages_used", Gauge, "KV pages in use, over all groups."),
    Metric("pagoda_pages_cached", Gauge, "KV pages that hold prefixes and nothing else, over all groups."),
    Metric("pagoda_pages_pinned", Gauge, "KV pages that pins hold, over all groups; they are among those in use."),
    Metric("pagoda_pages", Gauge, "KV pages there are, over all groups."),
    Metric("pagoda_disk_pages", Gauge, "KV pages on disk that can be restored."),
    Metric("pagoda_disk_bytes", Gauge, "Bytes of all files of the tier, in whole blocks."),
    Metric("pagoda_disk_writing", Gauge, "1; 0 while nothing is written, as the disk is full or refuses."),
    Metric("pagoda_disk_saved_pages_total", Counter, "KV pages written to disk."),
    Metric("pagoda_disk_restored_pages_total", Counter, "KV pages read back from disk and put in place."),
    Metric("pagoda_disk_dropped_pages_total", Counter, "KV pages not written: disk too slow or full, budget all pins."),
    Metric("pagoda_disk_faults_total", Counter, "Files that could not be used or written, by cause.", ("cause",)),
    Metric("pagoda_step_seconds", Histogram, "What the machine room worked on a step.", (), SHORT),
    Metric("pagoda_step_rows", Histogram, "Tokens computed in a step.", (), COUNTS),
    Metric(
        "pagoda_step_prediction_error",
        Histogram,
        "Relative error, without its sign, of the seconds predicted for a step: 0.1 is a tenth too few or too many.",
        (),
        ERRORS,
    ),
    Metric(
        "pagoda_ttft_prediction_error",
        Histogram,
        "Relative error, without its sign, of the TTFT predicted when a request was taken on.",
        (),
        ERRORS,
    ),
    Metric(
        "pagoda_drafts_total",
        Counter,
        "Drafts verified, by drafter and by whether they were right.",
        ("drafter", "right"),
    ),
    Metric(
        "pagoda_drafts_right", Histogram, "Drafts of a sequence in one step that were right.", ("drafter",), COUNTS[:5]
    ),
    Metric("pagoda_info", Gauge, "1; the labels say what is served.", ("model", "fingerprint", "page_size")),
)
"""All metrics there are. A counter's `_total` is part of its name; a histogram adds `_bucket`, `_sum` and `_count`."""


def _build(metric: Metric, registry: CollectorRegistry) -> Any:
    options: dict[str, Any] = {"labelnames": metric.labels, "registry": registry}
    if metric.buckets:
        options["buckets"] = metric.buckets
    return metric.kind(metric.name, metric.help, **options)


class PrometheusObserver:
    """Counts what the engine tells, in a registry of its own. Safe to call from any thread.

    Args:
        compat: `vllm` adds vLLM's names for what it has too.
    """

    def __init__(self, compat: str | None = None) -> None:
        self._compat = compat
        self.registry = CollectorRegistry()
        built = {metric.name: _build(metric, self.registry) for metric in METRICS}
        self._metrics: dict[str, Any] = built
        self._counting = threading.Lock()
        self._counted: dict[str, int] = {}
        """Totals that counters were brought up to, by name."""
        self._gap: Callable[[float], None] = built["pagoda_itl_seconds"].observe
        self._generated: Callable[[float], None] = built["pagoda_generation_tokens_total"].inc
        self._step_seconds: Callable[[float], None] = built["pagoda_step_seconds"].observe
        self._step_rows: Callable[[float], None] = built["pagoda_step_rows"].observe
        self._step_error: Callable[[float], None] = built["pagoda_step_prediction_error"].observe
        self._model = ""

    def serving(self, model: str, capacity: Capacity) -> None:
        """What is served: known once the model is loaded."""
        self._model = model
        self._metrics["pagoda_info"].labels(model, capacity.fingerprint, str(capacity.page_size)).set(1)
        self._metrics["pagoda_pages"].set(sum(capacity.pages))

    def render(self, accept: str = "") -> tuple[bytes, str]:
        """The text for a scraper and its content type, by the scraper's `Accept` header."""
        if self._compat == "vllm":
            return vllm_names.render(self.registry, self._model), vllm_names.CONTENT_TYPE
        encoder, content_type = choose_encoder(accept)
        return encoder(self.registry), content_type

    def queues(self, running: int, waiting: int) -> None:
        """The queues as they stand: for a scrape while no step runs."""
        self._metrics["pagoda_running_sequences"].set(running)
        self._metrics["pagoda_waiting_sequences"].set(waiting)

    def disk(self, report: DiskReport) -> None:
        """What is on disk: for a scrape."""
        metrics = self._metrics
        metrics["pagoda_disk_pages"].set(report.units)
        metrics["pagoda_disk_bytes"].set(report.bytes)
        metrics["pagoda_disk_writing"].set(report.writing)
        self._count_to(metrics["pagoda_disk_saved_pages_total"], "saved", report.saved)
        self._count_to(metrics["pagoda_disk_restored_pages_total"], "restored", report.restored)
        self._count_to(metrics["pagoda_disk_dropped_pages_total"], "dropped", report.dropped)
        for fault, count in report.faults:
            self._count_to(metrics["pagoda_disk_faults_total"].labels(str(fault)), fault, count)

    def _count_to(self, counter: Counter, name: str, total: int) -> None:
        """Bring a counter up to a total."""
        with self._counting:
            counter.inc(total - self._counted.get(name, 0))
            self._counted[name] = total

    def answered_with_error(self, status: int) -> None:
        """The front desk answered with an error."""
        self._metrics["pagoda_http_errors_total"].labels(str(status)).inc()

    def arrived(self, request: GenerateRequest) -> None:
        """A request was accepted into the queue."""
        self._metrics["pagoda_requests_total"].inc()
        self._metrics["pagoda_prompt_tokens_total"].inc(len(request.prompt))
        self._metrics["pagoda_request_prompt_tokens"].observe(len(request.prompt))

    def refused(self, cause: str) -> None:
        """A request was not accepted."""
        self._metrics["pagoda_requests_refused_total"].labels(cause).inc()

    def stepped(self, plan: StepPlan, result: StepResult, state: EngineState) -> None:
        """A step was finished and applied."""
        if plan.chunks:  # else it only moved pages
            self._step_seconds(result.seconds)
            self._step_rows(plan.rows)
            self._step_error(abs(state.step_error))
        if plan.drafts:
            self._drafted(plan, result)
        self.queues(state.running, state.waiting)
        self._metrics["pagoda_pages_used"].set(state.pages_used)
        self._metrics["pagoda_pages_cached"].set(state.pages_cached)
        self._metrics["pagoda_pages_pinned"].set(state.pages_pinned)
        self._metrics["pagoda_pages"].set(state.pages_total)

    def _drafted(self, plan: StepPlan, result: StepResult) -> None:
        sampled = Counts(s.sequence for s in result.sampled)
        for chunk in plan.chunks:
            if chunk.drafts:
                right = sampled[chunk.sequence] - 1
                self._metrics["pagoda_drafts_total"].labels(chunk.drafter, "yes").inc(right)
                self._metrics["pagoda_drafts_total"].labels(chunk.drafter, "no").inc(chunk.drafts - right)
                self._metrics["pagoda_drafts_right"].labels(chunk.drafter).observe(right)

    def emitted(self, event: TokenEvent, gap: float | None) -> None:
        """An event left the engine."""
        if event.token_ids:
            self._generated(len(event.token_ids))
            if gap is not None:
                self._gap(gap)
        if event.finish is not None:
            self._finished(event)

    def _finished(self, event: TokenEvent) -> None:
        self._metrics["pagoda_sequences_finished_total"].labels(str(event.finish)).inc()
        self._metrics["pagoda_sequence_completion_tokens"].observe(event.completion_tokens)
        timings, tokens = event.timings, event.completion_tokens
        if timings is None or tokens == 0:
            return
        self._metrics["pagoda_queue_seconds"].observe(timings.queued)
        self._metrics["pagoda_ttft_seconds"].observe(timings.first_token)
        self._metrics["pagoda_e2e_seconds"].observe(timings.total)
        if timings.predicted is not None and timings.first_token > 0 and event.index == 0:
            wrong = abs(timings.predicted - timings.first_token) / timings.first_token
            self._metrics["pagoda_ttft_prediction_error"].observe(wrong)
        if tokens > 1:
            self._metrics["pagoda_tpot_seconds"].observe((timings.total - timings.first_token) / (tokens - 1))

    def preempted(self, request_id: str) -> None:  # noqa: ARG002
        """A sequence lost its pages and will be recomputed."""
        self._metrics["pagoda_preemptions_total"].inc()

    def matched(self, request: GenerateRequest, found: int, cause: CacheCause) -> None:
        """A request was looked up in the cache: once, however many choices share its prompt."""
        self._metrics["pagoda_prefix_matches_total"].labels(str(cause)).inc()
        self._metrics["pagoda_cached_prompt_tokens_total"].inc(found)
        self._metrics["pagoda_prefix_missed_tokens_total"].labels(str(cause)).inc(len(request.prompt) - 1 - found)

    def lookups(self) -> Lookups:
        """What the prefix cache has been asked for so far."""
        counts = {cause: self._count("pagoda_prefix_matches_total", cause) for cause in CacheCause}
        missed = {cause: self._count("pagoda_prefix_missed_tokens_total", cause) for cause in CacheCause}
        return Lookups(self._count("pagoda_cached_prompt_tokens_total"), counts, missed)

    def _count(self, name: str, cause: CacheCause | None = None) -> int:
        labels = {} if cause is None else {"cause": str(cause)}
        return int(self.registry.get_sample_value(name, labels) or 0)
