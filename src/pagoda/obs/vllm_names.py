"""What vLLM's dashboards and routers look for, under vLLM's names, made of Pagoda's own metrics at each scrape.

Knows names only: nothing is counted here. The names have a colon, which newer encoders rewrite, so they are written in
the plain text format that keeps them.
"""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Metric, generate_latest

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

NAMES = {
    "pagoda_running_sequences": "num_requests_running",
    "pagoda_waiting_sequences": "num_requests_waiting",
    "pagoda_prompt_tokens": "prompt_tokens",
    "pagoda_generation_tokens": "generation_tokens",
    "pagoda_preemptions": "num_preemptions",
    "pagoda_cached_prompt_tokens": "prefix_cache_hits",
    "pagoda_sequences_finished": "request_success",
    "pagoda_ttft_seconds": "time_to_first_token_seconds",
    "pagoda_itl_seconds": "inter_token_latency_seconds",
    "pagoda_tpot_seconds": "request_time_per_output_token_seconds",
    "pagoda_e2e_seconds": "e2e_request_latency_seconds",
    "pagoda_queue_seconds": "request_queue_time_seconds",
    "pagoda_request_prompt_tokens": "request_prompt_tokens",
    "pagoda_sequence_completion_tokens": "request_generation_tokens",
    "pagoda_step_rows": "iteration_tokens_total",
}
"""Pagoda's name -> vLLM's, without `vllm:` and without the `_total` of counters. `kv_cache_usage_perc` and
`prefix_cache_queries` are made besides.
"""
LABELS = {"reason": "finished_reason"}


class _Renamed:
    """A registry's metrics under vLLM's names."""

    def __init__(self, registry: CollectorRegistry, model: str) -> None:
        self._registry, self._model = registry, model

    def collect(self) -> Iterator[Metric]:
        """Every metric that vLLM has too."""
        sources = {metric.name: metric for metric in self._registry.collect()}
        for ours, theirs in NAMES.items():
            yield self._renamed(sources[ours], f"vllm:{theirs}")
        yield self._renamed(sources["pagoda_prompt_tokens"], "vllm:prefix_cache_queries")
        used, all_pages = (sources[name].samples[0].value for name in ("pagoda_pages_used", "pagoda_pages"))
        usage = Metric("vllm:kv_cache_usage_perc", "KV pages in use: 1 is all.", "gauge")
        usage.add_sample(usage.name, self._labels({}), used / all_pages if all_pages else 0.0)
        yield usage

    def _labels(self, own: dict[str, str]) -> dict[str, str]:
        return {"model_name": self._model, "engine": "0"} | {LABELS.get(k, k): v for k, v in own.items()}

    def _renamed(self, source: Metric, name: str) -> Metric:
        copy = Metric(name, source.documentation, source.type)
        for sample in source.samples:
            if not sample.name.endswith("_created"):
                copy.add_sample(name + sample.name.removeprefix(source.name), self._labels(sample.labels), sample.value)
        return copy


def render(registry: CollectorRegistry, model: str) -> bytes:
    """The registry's own metrics, then those that vLLM has, in the plain text format."""
    renamed = CollectorRegistry(auto_describe=False)
    renamed.register(_Renamed(registry, model))
    return generate_latest(registry) + generate_latest(renamed)
