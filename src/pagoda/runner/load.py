"""From a model file to a runner: packs the weights, commits the KV pages. `sizing` says how many."""

from __future__ import annotations

import hashlib
from typing import Protocol

from pagoda.backends import open_backend
from pagoda.backends.cpu import CpuBackend, rope_table
from pagoda.config import EngineConfig
from pagoda.models import Source, build, read_config
from pagoda.plan import Capacity
from pagoda.runner.runner import Runner
from pagoda.runner.sizing import Sizing


class Digested(Source, Protocol):
    """A model file that can say what is in it."""

    def digest(self) -> str:
        """SHA-256 of the whole file."""
        ...


def fingerprint(digest: str, config: EngineConfig, backend: CpuBackend, variant: str = "") -> str:
    """Of all that outputs are a function of besides the request; `variant` is the model's."""
    parts = [digest, config.model.activations, config.model.kv_format, backend.name, str(backend.arithmetic)]
    parts += [variant] * bool(variant)
    return "pagoda-" + hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def load_runner(source: Digested, config: EngineConfig, sizing: Sizing) -> Runner:
    """Open the backend, pack the weights, commit the KV pages.

    Raises:
        ModelFileError, UnsupportedModel: the file.
        MemoryLimit: the machine has less than `sizing` was told.
    """
    backend = open_backend("cpu", activations=config.model.activations, threads=config.machine.threads)
    assert isinstance(backend, CpuBackend)
    shape = read_config(source)
    model = build(
        source,
        shape,
        backend.weights,
        rope_table,
        sizing.longest,  # a file may promise any length: angles are made for what pages can hold
    )
    pages = (sizing.pages,) * len(sizing.groups)
    store = backend.kv_store(sizing.groups, pages, config.machine.page_size, config.model.kv_format)
    capacity = Capacity(
        pages=pages,
        page_size=config.machine.page_size,
        max_model_len=sizing.longest,
        vocabulary=model.vocabulary,
        fingerprint=fingerprint(source.digest(), config, backend, shape.variant(sizing.longest)),
    )
    return Runner(backend, model, store, capacity)
