"""From a model file to a runner: packs the weights, sizes and commits the KV pages."""

from __future__ import annotations

import hashlib
from typing import Protocol

from pagoda.backends import open_backend
from pagoda.backends.cpu import CpuBackend, rope_table
from pagoda.backends.machine import free_memory
from pagoda.backends.ops import KVGroup
from pagoda.config import EngineConfig, MachineConfig
from pagoda.errors import InvalidConfig, MemoryLimit
from pagoda.models import Source, build, read_config
from pagoda.plan import Capacity
from pagoda.runner.runner import Runner

KV_SHARE = 0.6
"""Of the memory that is free once the weights are packed: most that KV pages may take."""
KV_AUTO = 2**30
"""Most bytes of KV that are committed unasked: a start should not take all of a machine, nor the time to touch it."""
_ELEMENT = {"f32": 4, "f16": 2, "int8": 1}


class Digested(Source, Protocol):
    """A model file that can say what is in it."""

    def digest(self) -> str:
        """SHA-256 of the whole file."""
        ...


def page_bytes(group: KVGroup, page_size: int, kv_format: str) -> int:
    """Bytes of one page of all layers: numbers, values padded to what the kernels load at once, and f16 scales."""
    dim = group.head_dim
    if kv_format == "int4":
        blocks = -(-dim // 32)
        slot = -(-dim // 2) + 16 * blocks + 2 * blocks * 2 * 2  # scale and offset of each block, for key and value
    else:
        slot = (dim + -(-dim // 16) * 16) * _ELEMENT[kv_format] + (4 if kv_format == "int8" else 0)
    return group.layers * group.heads * (-(-page_size * slot // 2) * 2)


def kv_pages(groups: tuple[KVGroup, ...], config: EngineConfig, max_model_len: int, free: int) -> tuple[int, ...]:
    """How many pages each group gets: all groups hold the same tokens.

    Raises:
        MemoryLimit: not even one page of each group fits.
    """
    machine = config.machine
    each = sum(page_bytes(g, machine.page_size, config.model.kv_format) for g in groups)
    longest = -(-max_model_len // machine.page_size)
    limit = int(free * KV_SHARE)
    budget = _budget(machine, each * longest, limit)
    pages = min(budget // each, longest * config.scheduler.max_num_seqs)
    if pages < 1:
        raise MemoryLimit(
            f"a KV page of {machine.page_size} tokens takes {each} bytes, and {budget} are to be had "
            f"({free} bytes free, of which KV may take {KV_SHARE:.0%}); free some memory or take a smaller page_size"
        )
    return (pages,) * len(groups)


def _budget(machine: MachineConfig, one_sequence: int, limit: int) -> int:
    if machine.kv_memory is None:
        return min(limit, max(KV_AUTO, one_sequence))
    if machine.kv_memory > limit:
        raise MemoryLimit(f"kv_memory asks for {machine.kv_memory} bytes, and KV may take {limit} of what is free")
    return machine.kv_memory


def fingerprint(digest: str, config: EngineConfig, backend: CpuBackend) -> str:
    """Of all that outputs are a function of besides the request."""
    parts = (digest, config.model.activations, config.model.kv_format, backend.name, str(backend.arithmetic))
    return "pagoda-" + hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def load_runner(source: Digested, config: EngineConfig) -> Runner:
    """Open the backend, pack the weights, commit the KV pages.

    Raises:
        ModelFileError, UnsupportedModel: the file.
        InvalidConfig: a setting does not fit the model.
        MemoryLimit: the machine.
    """
    shape = read_config(source)
    longest = config.model.max_model_len or shape.context
    if longest > shape.context:
        raise InvalidConfig(f"max_model_len is {longest}, and the model was trained for {shape.context} tokens")
    backend = open_backend("cpu", activations=config.model.activations, threads=config.machine.threads)
    assert isinstance(backend, CpuBackend)
    model = build(source, shape, backend.weight, lambda f, n: rope_table(f, n, adjacent=True), longest)
    pages = kv_pages(model.groups, config, longest, free_memory())
    store = backend.kv_store(model.groups, pages, config.machine.page_size, config.model.kv_format)
    capacity = Capacity(
        pages=pages,
        page_size=config.machine.page_size,
        max_model_len=min(longest, min(pages) * config.machine.page_size),
        vocabulary=model.vocabulary,
        fingerprint=fingerprint(source.digest(), config, backend),
    )
    return Runner(backend, model, store, capacity)
