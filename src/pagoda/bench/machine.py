"""What this machine can do, measured in a few seconds, without a model.

Decoding one sequence reads every weight for each token, so memory bandwidth bounds it; prefill and large batches are
bound by multiply-adds. Both bounds together are the roofline (Williams, Waterman, Patterson 2009). Every figure is the
best of several short windows: neighbours only ever make a window slower.
"""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from typing import Any

from pagoda.backends import _native
from pagoda.backends.cpu import chosen_isa, fault, isas
from pagoda.backends.machine import affinity, cores, cpu_quota, free_memory, last_level_cache, memory_limit

KINDS = ("f32", "int16", "int8")
"""Kinds of multiply-add: of f32; of int16 into int32; of bytes into int32."""
CACHES = 2
"""Buffers for reading are so many times the last-level cache, so that next to nothing is still in it."""
LEAST_BUFFER, MOST_BUFFER = 256 * 2**20, 2**30
"""Bytes."""


@dataclass(frozen=True, slots=True)
class Peak:
    """Arithmetic held in registers, all threads together: billions of operations a second, a multiply-add being two."""

    f32_gflop_s: float
    int16_gop_s: float
    int8_gop_s: float


@dataclass(frozen=True, slots=True)
class Machine:
    """What there is, and what it can do."""

    cores: int
    """That Pagoda uses, if not told otherwise: one thread on each."""
    affinity_cores: int
    quota_cores: float | None
    """The cgroup's CPU quota; None is no limit."""
    memory_limit_bytes: int
    memory_free_bytes: int
    isas: tuple[str, ...]
    """Best first."""
    isa: str
    """The one in use."""
    faults: dict[str, str]
    """By instruction set: what its self-test found to differ from the scalar build; empty if nothing."""
    threads: int
    """Those of the figures below."""
    cache_bytes: int
    """Last level."""
    buffer_bytes: int
    """What reading was measured on."""
    read_gb_s: float
    """All threads together, in 10^9 bytes a second."""
    read_one_thread_gb_s: float
    peaks: dict[str, Peak]
    """By instruction set."""
    seconds: float
    """What measuring took."""

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self)


def buffer_bytes() -> int:
    """For reading: well over the last-level cache, within a quarter of the free memory."""
    wanted = min(max(CACHES * last_level_cache(), LEAST_BUFFER), MOST_BUFFER)
    return max(min(wanted, free_memory() // 4), 2**22)


def read_bandwidth(buffer: int, threads: int | None = None, seconds: float = 0.5) -> float:
    """Bytes a second that `threads` threads (None: all allowed) read from `buffer` bytes, again and again.

    Raises:
        MemoryError: the buffer cannot be had.
    """
    pool = _native.Pool(threads or cores())
    return _native.ReadBuffer(pool, buffer).bandwidth(pool, chosen_isa(), seconds)


def measure_machine(threads: int | None = None, seconds: float = 2.5) -> Machine:
    """Measure everything, in about `seconds` and the time to touch the buffers.

    Raises:
        InvalidConfig: `PAGODA_ISA` names an instruction set that is not here.
        MemoryError: not even a buffer of a few megabytes.
    """
    began = time.perf_counter()
    isa, used, buffer = chosen_isa(), threads or cores(), buffer_bytes()
    pool = _native.Pool(used)
    free = free_memory()
    each = seconds / 2 / (len(isas()) * len(KINDS))
    peaks = {
        name: Peak(*(round(2e-9 * _native.multiply_adds(pool, name, kind, each), 1) for kind in KINDS))
        for name in isas()
    }
    memory = _native.ReadBuffer(pool, buffer)
    together = memory.bandwidth(pool, isa, seconds / 4)
    alone = together if used == 1 else memory.bandwidth(_native.Pool(1), isa, seconds / 4)
    return Machine(
        cores=cores(),
        affinity_cores=affinity(),
        quota_cores=cpu_quota(),
        memory_limit_bytes=memory_limit(),
        memory_free_bytes=free,
        isas=isas(),
        isa=isa,
        faults={name: fault(name) for name in isas()},
        threads=used,
        cache_bytes=last_level_cache(),
        buffer_bytes=buffer,
        read_gb_s=round(together / 1e9, 2),
        read_one_thread_gb_s=round(alone / 1e9, 2),
        peaks=peaks,
        seconds=round(time.perf_counter() - began, 2),
    )
