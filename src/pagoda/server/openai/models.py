"""`GET /v1/models` and `/v1/models/{id}`: the one model served here."""

from __future__ import annotations

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from pagoda.server.asgi import json_response
from pagoda.server.desk import Desk
from pagoda.server.identity import caller_of


class Model(msgspec.Struct):
    """A model, with what load generators and routers ask for besides OpenAI's fields."""

    id: str
    created: int
    max_model_len: int
    root: str
    object: str = "model"
    owned_by: str = "pagoda"


class ModelList(msgspec.Struct):
    """All models."""

    data: list[Model]
    object: str = "list"


def _model(desk: Desk) -> Model:
    return Model(desk.model, desk.created, desk.engine.capacity.max_model_len, desk.model)


async def list_models(request: Request) -> Response:
    """The list, which has one entry."""
    caller_of(request)
    return json_response(ModelList([_model(request.app.state.desk)]))


async def show_model(request: Request) -> Response:
    """One model by its id; any other is a 404."""
    caller_of(request)
    desk: Desk = request.app.state.desk
    desk.check_model(request.path_params["model"])
    return json_response(_model(desk))
