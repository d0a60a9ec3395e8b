"""Backends by name. Each is imported when it is opened, so that reading or using one needs none of the others."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from pagoda.backends.ops import Backend
from pagoda.errors import InvalidConfig

BACKENDS = {
    "cpu": ("pagoda.backends.cpu", "CpuBackend"),
    "reference": ("pagoda.backends.reference", "ReferenceBackend"),
}
"""Name -> module and class."""


def open_backend(name: str, **options: Any) -> Backend:
    """Open a backend; the options are those of its class, `activations` and `threads` among them for every one.

    Raises:
        InvalidConfig: no backend has this name.
        ImportError: its native part is missing or was built for another machine.
    """
    if name not in BACKENDS:
        raise InvalidConfig(f"backend must be one of {', '.join(BACKENDS)}, got {name!r}")
    module, cls = BACKENDS[name]
    backend: Backend = getattr(import_module(module), cls)(**options)
    return backend
