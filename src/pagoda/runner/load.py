"""From a model file to a runner: packs the weights, commits the KV pages. `sizing` says how many."""

from __future__ import annotations

import hashlib
from typing import Protocol

from pagoda.backends import open_backend
from pagoda.backends.cpu import CpuBackend, rope_table
from pagoda.config import EngineConfig, split_format
from pagoda.errors import InvalidConfig
from pagoda.models import Source, build, read_config
from pagoda.models.decoder import Decoder
from pagoda.plan import Capacity
from pagoda.runner.guessing import Guesser
from pagoda.runner.runner import Runner
from pagoda.runner.sizing import Sizing, page_bytes


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


def load_runner(source: Digested, config: EngineConfig, sizing: Sizing, drafter: Source | None = None) -> Runner:
    """Open the backend, pack the weights, commit the KV pages.

    Args:
        source: the model's file.
        config: as `sizing` was told.
        sizing: how many pages.
        drafter: the file of the model that guesses drafts, if `speculate` names one.

    Raises:
        ModelFileError, UnsupportedModel: a file.
        InvalidConfig: the drafter does not go with the model.
        MemoryLimit: the machine has less than `sizing` was told.
    """
    backend = open_backend("cpu", activations=config.model.activations, threads=config.machine.threads)
    assert isinstance(backend, CpuBackend)
    model = _build(source, backend, sizing)
    page_size, kv_format = config.machine.page_size, config.model.kv_format
    drafter_format = split_format(kv_format)[0]
    pages, beside = sizing.pages, sizing.pages[:1] * len(sizing.drafter_groups)
    store = backend.kv_store(sizing.groups, pages, page_size, model.kv_formats(kv_format))
    guesser, unit_bytes = None, store.unit_bytes
    if drafter is not None:
        other = _build(drafter, backend, sizing)
        if other.vocabulary != model.vocabulary:
            raise InvalidConfig(
                f"{drafter.name} has {other.vocabulary} tokens and {source.name} {model.vocabulary}: "
                "a drafter must have the vocabulary of the model it drafts for"
            )
        own = backend.kv_store(sizing.drafter_groups, beside, page_size, drafter_format)
        unit_bytes += own.unit_bytes
        guesser = Guesser(backend, other, other.layers, own, first_group=len(sizing.groups))
    elif layers := guess_layers(config.scheduler.speculate, model.layers):
        guesser = Guesser(backend, model, layers, store)
    capacity = Capacity(
        pages=pages + beside,
        page_size=page_size,
        max_model_len=sizing.longest,
        vocabulary=model.vocabulary,
        fingerprint=fingerprint(source.digest(), config, backend, model.config.variant(sizing.longest)),
        layout=f"{backend.layout} {sizing.groups} {drafter.name if drafter else None} {sizing.drafter_groups}",
        unit_bytes=unit_bytes,
        page_bytes=sizing.page_bytes + tuple(page_bytes(g, page_size, drafter_format) for g in sizing.drafter_groups),
        windows=tuple(group.window for group in sizing.groups) + (None,) * len(beside),
    )
    return Runner(backend, model, store, capacity, guesser)


def _build(source: Source, backend: CpuBackend, sizing: Sizing) -> Decoder:
    """Its weights packed; a file may promise any length, angles are made for what pages can hold."""
    return build(source, read_config(source), backend.weights, rope_table, sizing.longest)


def guess_layers(speculate: str, layers: int) -> int:
    """How many layers guess, by `SchedulerConfig.speculate`; 0 if they are not asked to.

    Raises:
        InvalidConfig: the model has not that many.
    """
    kind, _, count = speculate.partition(":")
    if kind != "self":
        return 0
    if int(count) >= layers:
        raise InvalidConfig(f"speculate={speculate}: the model has {layers} layers: name 1 to {layers - 1}")
    return int(count)
