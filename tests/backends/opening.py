"""Backends for tests: opened once each, and skipped with a reason where one cannot be imported."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from importlib import import_module
from typing import Any

import pytest

from pagoda.backends import open_backend
from pagoda.backends.ops import Backend

_opened = lru_cache(maxsize=None)(open_backend)


def opened(name: str, **options: Any) -> Backend:
    try:
        return _opened(name, **options)
    except ImportError as error:
        pytest.skip(f"the {name} backend cannot be imported: {error}")


def cpu_variants(activations: str) -> Iterator[tuple[str, Backend]]:
    """The native backend in each instruction set this machine has, with 1 to 4 threads; the first is scalar's."""
    opened("cpu", activations=activations)
    isas = list(import_module("pagoda.backends.cpu").isas())
    isas.sort(key=lambda isa: isa != "scalar")
    for isa in isas:
        for threads in (1, 2, 3, 4):
            yield f"{isa}, {threads} threads", opened("cpu", activations=activations, isa=isa, threads=threads)
