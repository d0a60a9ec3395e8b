"""Who calls: the one place that says whose request it is, for the cache's key, for pins and for what may be looked at.

Knows HTTP requests; knows nothing of how keys are kept: whoever has them gives `build_app` another `Identify`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Protocol

from starlette.requests import Request

from pagoda.server.errors import HttpFailure
from pagoda.server.limits import NO_LIMITS, Limits


@dataclass(frozen=True, slots=True)
class Caller:
    """Whose request it is."""

    tenant: str
    """Prefixes are shared within a tenant."""
    administrator: bool
    """Whether it may see and change what belongs to all: pins for every tenant, the whole cache."""
    limits: Limits = NO_LIMITS
    """What it may take."""


class Identify(Protocol):
    """Says who calls."""

    def __call__(self, request: Request) -> Caller:
        """The caller.

        Raises:
            HttpFailure: 401, it is nobody who may call.
        """
        ...


def one_tenant(request: Request) -> Caller:
    """Without keys all are one tenant, and whoever calls from this machine administers it.

    Not so a page in a browser, nor what came through a proxy: both may speak for others than who sits here.
    """
    headers = request.headers
    relayed = any(name in headers for name in ("origin", "forwarded", "x-forwarded-for"))
    host = re.sub(r":\d+$", "", headers.get("host", ""))
    client = request.client.host if request.client else ""
    return Caller("", not relayed and _loopback(client) and _loopback(host.strip("[]")))


def caller_of(request: Request) -> Caller:
    """Who calls, as this server tells them apart."""
    identify: Identify = request.app.state.identify
    return identify(request)


def administrator_of(request: Request) -> Caller:
    """Who calls.

    Raises:
        HttpFailure: 403, it is no administrator.
    """
    caller = caller_of(request)
    if not caller.administrator:
        message = (
            f"{request.method} {request.url.path} is for administrators; without keys these are callers on this machine"
        )
        raise HttpFailure(403, message, code="administrators_only")
    return caller


def _loopback(host: str) -> bool:
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False
