"""`GET /health`, `/health/ready` and `/metrics`: for probes and for Prometheus."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from pagoda.obs.metrics import PrometheusObserver
from pagoda.server.asgi import json_response
from pagoda.server.desk import Desk
from pagoda.server.identity import administrator_of, one_tenant


@dataclass(slots=True)
class Readiness:
    """Whether requests should come yet."""

    waits_for: str = ""
    """What is still to be done; empty once all is."""


class HealthAnswer(msgspec.Struct):
    """What a probe reads: the status code says as much as `status`."""

    status: str
    reason: str
    model: str
    running: int
    waiting: int


async def health(request: Request) -> Response:
    """200 while the engine makes progress or has nothing to do; 503 with the reason once it is dead or stalled."""
    return _answer(request, "")


async def ready(request: Request) -> Response:
    """As `health`, and 503 too until everything that was to be computed at the start is."""
    readiness: Readiness = request.app.state.readiness
    return _answer(request, readiness.waits_for)


def _answer(request: Request, waits_for: str) -> Response:
    desk: Desk = request.app.state.desk
    state = desk.engine.health()
    status = "dead" if not state.alive else "starting" if waits_for else "ok"
    answer = HealthAnswer(status, state.reason or waits_for, desk.model, state.running, state.waiting)
    return json_response(answer, 200 if status == "ok" else 503)


async def metrics(request: Request) -> Response:
    """Everything counted, in the text format that the scraper asks for; with keys, an administrator's only."""
    if request.app.state.identify is not one_tenant:
        administrator_of(request)
    desk: Desk = request.app.state.desk
    observer: PrometheusObserver = request.app.state.observer
    state = desk.engine.health()
    observer.queues(state.running, state.waiting)
    if (report := desk.engine.disk_report()) is not None:
        observer.disk(report)
    content, media_type = observer.render(request.headers.get("accept", ""))
    return Response(content, headers={"content-type": media_type})
