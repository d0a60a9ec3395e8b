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
    """The native backend: first scalar, the oracle; then each other instruction set of this machine with 3 threads, and
    the best with 1, 2 and 4 as well, and once without fusions."""
    opened("cpu", activations=activations)
    best, *others = [isa for isa in import_module("pagoda.backends.cpu").isas() if isa != "scalar"] or ["scalar"]
    variants = [("scalar", 1), *((best, threads) for threads in (1, 2, 3, 4)), *((isa, 3) for isa in others)]
    for isa, threads in variants:
        yield f"{isa}, {threads} threads", opened("cpu", activations=activations, isa=isa, threads=threads)
    yield f"{best}, unfused", opened("cpu", activations=activations, isa=best, threads=2, fuse=False)
