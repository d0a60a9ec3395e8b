"""`GET` and `DELETE /v1/cache`: what every KV page is used for, what the prefix cache was asked for, and its clearing.

For administrators: it tells of all tenants. Knows the wire format; the figures are the engine's and the observer's.
"""

from __future__ import annotations

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from pagoda.errors import InvalidRequest
from pagoda.obs.metrics import PrometheusObserver
from pagoda.server.asgi import json_response
from pagoda.server.desk import Desk
from pagoda.server.identity import administrator_of
from pagoda.server.pins import PinAnswer, wire_pin
from pagoda.types import CacheCause, CacheReport, DiskFault


class PageCounts(msgspec.Struct):
    """Pages of all KV groups together; the last four add up to the first."""

    total: int
    used: int
    pinned: int
    cached: int
    free: int


class Asked(msgspec.Struct):
    """Requests and tokens that the prefix cache was asked for, by the cause why no more was found."""

    hit_rate: float | None
    found_tokens: int
    missed_tokens: dict[CacheCause, int]
    requests: dict[CacheCause, int]


class DiskAnswer(msgspec.Struct):
    """What is kept on disk: fields as `types.DiskReport`, counts since the start."""

    units: int
    bytes: int
    budget: int
    saved: int
    restored: int
    dropped: int
    faults: dict[DiskFault, int]
    writing: bool
    restore_s: float | None
    compute_s: float | None


class CacheAnswer(msgspec.Struct):
    """The cache."""

    page_size: int
    unit_bytes: int
    """Of one page of every KV group."""
    pages: PageCounts
    prefixes: int
    asked: Asked
    pins: list[PinAnswer]
    maps: list[str]
    disk: DiskAnswer | None
    """null without `--kv-dir`."""
    object: str = "cache"


class CacheCleared(msgspec.Struct):
    """What was cleared."""

    pages: int
    pins: int
    object: str = "cache.cleared"


async def show_cache(request: Request) -> Response:
    """Everything about it, about now."""
    administrator_of(request)
    desk: Desk = request.app.state.desk
    observer: PrometheusObserver = request.app.state.observer
    report, lookups, capacity = desk.engine.cache_report(), observer.lookups(), desk.engine.capacity
    pages = PageCounts(report.total, report.used, report.pinned, report.cached, report.free)
    asked = Asked(lookups.hit_rate, lookups.found_tokens, lookups.missed_tokens, lookups.requests)
    pins = [wire_pin(pin, capacity) for pin in report.pins]
    answer = CacheAnswer(
        report.page_size, capacity.unit_bytes, pages, report.prefixes, asked, pins, list(report.maps), wire_disk(report)
    )
    return json_response(answer)


def wire_disk(report: CacheReport) -> DiskAnswer | None:
    """The tier as it is told over HTTP."""
    disk = report.disk
    if disk is None:
        return None
    return DiskAnswer(
        disk.units, disk.bytes, disk.budget, disk.saved, disk.restored, disk.dropped, dict(disk.faults), disk.writing,
        disk.restore_s, disk.compute_s,
    )  # fmt: skip


async def clear_cache(request: Request) -> Response:
    """Forget every prefix that no request uses; with `?pins=true` the pins too."""
    administrator_of(request)
    desk: Desk = request.app.state.desk
    wanted = request.query_params.get("pins", "false")
    if wanted not in ("true", "false"):
        raise InvalidRequest(f"pins must be true or false, got {wanted!r:.80}", "pins")
    report = desk.engine.cache_report()
    pins = sum(desk.engine.unpin(pin.id) for pin in report.pins) if wanted == "true" else 0
    desk.engine.clear_cache()
    return json_response(CacheCleared(report.cached + (report.pinned if pins else 0), pins))
