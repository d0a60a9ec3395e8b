"""The ASGI application: which path goes where. A pure factory; the process around it is `run.py`."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from pagoda.config import ServerConfig
from pagoda.errors import PagodaError
from pagoda.obs.metrics import PrometheusObserver
from pagoda.server.asgi import FrontDoor, error_response
from pagoda.server.cache import clear_cache, show_cache
from pagoda.server.desk import Desk
from pagoda.server.errors import HttpFailure
from pagoda.server.health import Readiness, health, metrics, ready
from pagoda.server.identity import Identify, one_tenant
from pagoda.server.openai.chat import chat_completions
from pagoda.server.openai.completions import completions
from pagoda.server.openai.models import list_models, show_model
from pagoda.server.pins import Allowance, create_pin, delete_pin, list_pins, show_pin
from pagoda.types import SamplingParams

if TYPE_CHECKING:
    from pagoda.engine.engine import Engine
    from pagoda.text.tokenizer import Tokenizer

CAUSES = ("invalid_api_key", "concurrency_limit", "token_limit")
"""What the front desk refuses that counts as a refused request, beside what the engine does."""

ROUTES = (
    Route("/v1/chat/completions", chat_completions, methods=["POST"]),
    Route("/v1/completions", completions, methods=["POST"]),
    Route("/v1/models", list_models, methods=["GET"]),
    Route("/v1/models/{model:path}", show_model, methods=["GET"]),
    Route("/v1/cache", show_cache, methods=["GET"]),
    Route("/v1/cache", clear_cache, methods=["DELETE"]),
    Route("/v1/cache/pins", list_pins, methods=["GET"]),
    Route("/v1/cache/pins", create_pin, methods=["POST"]),
    Route("/v1/cache/pins/{id}", show_pin, methods=["GET"]),
    Route("/v1/cache/pins/{id}", delete_pin, methods=["DELETE"]),
    Route("/health", health, methods=["GET"]),
    Route("/health/ready", ready, methods=["GET"]),
    Route("/metrics", metrics, methods=["GET"]),
)

_PLAIN = SamplingParams()


def build_app(
    engine: Engine,
    tokenizer: Tokenizer,
    model: str,
    config: ServerConfig | None = None,
    observer: PrometheusObserver | None = None,
    identify: Identify = one_tenant,
    defaults: SamplingParams = _PLAIN,
) -> Starlette:
    """The application over a started engine.

    Args:
        engine: Serves the requests; must outlive the application.
        tokenizer: Of the same model.
        model: The model's name in the API.
        config: Caps; `host` and `port` are not used here.
        observer: What `/metrics` shows: the one given to the engine.
        identify: Says who calls.
        defaults: How to sample where a request says nothing.
    """
    app = Starlette(
        routes=ROUTES,
        middleware=[Middleware(FrontDoor)],
        exception_handlers={HTTPException: _refuse, PagodaError: _refuse, HttpFailure: _refuse},
    )
    app.state.desk = Desk(engine, tokenizer, model, config or ServerConfig(), int(time.time()), defaults=defaults)
    app.state.observer = observer or PrometheusObserver()
    app.state.identify = identify
    app.state.readiness = Readiness()
    app.state.allowance = Allowance()
    return app


async def _refuse(request: Request, error: Exception) -> Response:
    """Any error as an answer in OpenAI's shape."""
    if isinstance(error, HTTPException):
        where = f"{request.method} {request.url.path}"
        if error.status_code == 405:
            allowed = (error.headers or {}).get("Allow", "another method")
            message, code = f"{where} is not served; this path takes {allowed}", "method_not_allowed"
        else:
            message, code = f"{where} is not served: {error.detail}", "not_found"
        answer = error_response(HttpFailure(error.status_code, message, code=code))
        answer.headers.update(error.headers or {})
        return answer
    observer: PrometheusObserver = request.app.state.observer
    answer = error_response(error)
    observer.answered_with_error(answer.status_code)
    if isinstance(error, HttpFailure) and error.code in CAUSES:
        observer.refused(error.code)
    return answer
