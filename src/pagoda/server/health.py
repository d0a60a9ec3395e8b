"""`GET /health` and `GET /metrics`: for probes and for Prometheus."""

from __future__ import annotations

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from pagoda.obs.metrics import PrometheusObserver
from pagoda.server.asgi import json_response
from pagoda.server.desk import Desk


class HealthAnswer(msgspec.Struct):
    """What a probe reads: the status code says as much as `status`."""

    status: str
    reason: str
    model: str
    running: int
    waiting: int


async def health(request: Request) -> Response:
    """200 while the engine makes progress or has nothing to do; 503 with the reason once it is dead or stalled."""
    desk: Desk = request.app.state.desk
    state = desk.engine.health()
    status = "ok" if state.alive else "dead"
    answer = HealthAnswer(status, state.reason, desk.model, state.running, state.waiting)
    return json_response(answer, 200 if state.alive else 503)


async def metrics(request: Request) -> Response:
    """Everything counted, in the text format that the scraper asks for."""
    desk: Desk = request.app.state.desk
    observer: PrometheusObserver = request.app.state.observer
    state = desk.engine.health()
    observer.queues(state.running, state.waiting)
    if (report := desk.engine.disk_report()) is not None:
        observer.disk(report)
    content, media_type = observer.render(request.headers.get("accept", ""))
    return Response(content, headers={"content-type": media_type})
