"""Errors on the wire: which status, and the body that OpenAI's clients expect.

Knows the error tree and OpenAI's error shape; nothing else of the protocol.
"""

from __future__ import annotations

import math

import msgspec
from msgspec import UNSET, UnsetType

from pagoda.errors import (
    EngineDied,
    InvalidRequest,
    MemoryLimit,
    Overloaded,
    PagodaError,
    PromptTooLong,
    TargetMissed,
    UnknownModel,
    UnsupportedField,
    UserError,
)


class ErrorDetail(msgspec.Struct):
    """`error` of OpenAI's error body; `code` and `param` are present even when null."""

    message: str
    type: str
    param: str | None = None
    code: str | None = None
    slo: Prospect | UnsetType = UNSET
    """With the code `ttft_target`."""


class Prospect(msgspec.Struct):
    """Why a request was refused that wants its first token by a certain time. Times in milliseconds."""

    predicted_ttft_ms: float
    target_ttft_ms: float
    queued_requests: int
    """Under way, waiting or not."""
    queued_tokens: int
    """Of their prompts."""


class ErrorBody(msgspec.Struct):
    """The body of every answer that is not a success, and the SSE event of a stream that fails."""

    error: ErrorDetail


class HttpFailure(Exception):
    """An answer to give instead of the one asked for, decided by the front desk itself."""

    def __init__(
        self, status: int, message: str, *, code: str, param: str | None = None, retry_after: int | None = None
    ) -> None:
        super().__init__(message)
        self.status, self.code, self.param = status, code, param
        self.retry_after = retry_after


_TABLE: tuple[tuple[type[PagodaError], int, str], ...] = (
    (PromptTooLong, 400, "context_length_exceeded"),
    (UnsupportedField, 400, "unsupported_field"),
    (InvalidRequest, 400, "invalid_value"),
    (UnknownModel, 404, "model_not_found"),
    (UserError, 400, "invalid_value"),
    (MemoryLimit, 503, "out_of_memory"),
    (TargetMissed, 429, "ttft_target"),
    (Overloaded, 503, "overloaded"),
    (EngineDied, 503, "engine_unavailable"),
    (PagodaError, 500, "internal_error"),
)
"""The first class that fits decides."""


def describe(error: Exception) -> tuple[int, ErrorBody]:
    """The status and body for an error; one that Pagoda did not raise on purpose tells the client nothing of itself."""
    if isinstance(error, HttpFailure):
        return error.status, body(error.status, str(error), error.param, error.code)
    if isinstance(error, PagodaError):
        for kind, status, code in _TABLE:
            if isinstance(error, kind):
                told = body(status, str(error), getattr(error, "param", None), code)
                if isinstance(error, TargetMissed):
                    times = round(error.predicted_ms, 1), round(error.target_ms, 1)
                    told.error.slo = Prospect(*times, error.requests, error.tokens)
                return status, told
    return 500, body(500, "the server failed on this request; its log has the cause", None, "internal_error")


def retry_after(error: Exception, status: int) -> int | None:
    """Seconds after which it may be worth while to try again; None if it is not."""
    if isinstance(error, HttpFailure) and error.retry_after is not None:
        return error.retry_after
    if isinstance(error, TargetMissed):
        return max(1, math.ceil((error.predicted_ms - error.target_ms) / 1000))
    return 1 if status in (429, 503) else None


def body(status: int, message: str, param: str | None = None, code: str | None = None) -> ErrorBody:
    """An error body; the type follows from the status."""
    kind = "server_error" if status >= 500 else "rate_limit_error" if status == 429 else "invalid_request_error"
    return ErrorBody(ErrorDetail(message, kind, param, code))
