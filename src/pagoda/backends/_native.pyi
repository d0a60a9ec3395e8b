"""The native module, built from native/src/bindings.cpp, which says what each of these does."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from pagoda.backends.ops import Bytes, Floats, Ints

def isas() -> list[str]: ...
def self_test(isa: str) -> str: ...
def rope_angles(frequencies: npt.NDArray[np.float64], positions: int) -> tuple[Floats, Floats]: ...

class Pool:
    def __init__(self, threads: int) -> None: ...
    @property
    def threads(self) -> int: ...

class ReadBuffer:
    def __init__(self, pool: Pool, bytes: int) -> None: ...
    def bandwidth(self, pool: Pool, isa: str, seconds: float) -> float: ...

def multiply_adds(pool: Pool, isa: str, kind: str, seconds: float) -> float: ...

class Weight:
    @property
    def bytes(self) -> int: ...

def packed_bytes(format: str, n: int, k: int) -> int: ...
def pack(pool: Pool, matrices: Sequence[tuple[str, int, int, Bytes | tuple[int, int]]]) -> list[Weight]: ...
def read_files(extents: Sequence[tuple[int, int, int]]) -> list[Bytes]: ...

class ReadFailed(OSError): ...

class KVStore:
    def __init__(
        self, groups: Sequence[tuple[int, int, int, int]], slots: int, format: str, pool: Pool | None = None
    ) -> None: ...
    @property
    def bytes(self) -> int: ...
    def copy(self, group: int, source: int, target: int, slots: int) -> None: ...
    @property
    def unit_bytes(self) -> int: ...

class PageJob:
    def wait(self) -> None: ...
    @property
    def seconds(self) -> float: ...
    def take(self) -> list[Bytes]: ...

def transfer(
    pool: Pool, kv: KVStore, saves: Sequence[Sequence[int]], loads: Sequence[tuple[Sequence[int], Bytes]]
) -> PageJob: ...

class Slots:
    def __init__(self) -> None: ...

class StepJob:
    def wait(self) -> None: ...
    @property
    def over(self) -> bool: ...
    @property
    def seconds(self) -> float: ...
    @property
    def times(self) -> list[float]: ...
    def drawn(
        self,
    ) -> tuple[tuple[int, ...], tuple[int, ...], tuple[float, ...], tuple[tuple[tuple[int, float], ...], ...]]: ...
    def outputs(self) -> dict[str, Floats]: ...

class Program:
    def __init__(
        self,
        isa: str,
        instructions: Sequence[tuple[int, list[int], list[int], list[int], list[int], list[float], str]],
        buffers: Sequence[tuple[bool, int, int]],
        weights: Sequence[Weight],
        vectors: Sequence[Floats],
        ropes: Sequence[tuple[Floats, Floats, int, bool]],
        logits: int,
    ) -> None: ...

def submit(
    pool: Pool,
    program: Program,
    kv: KVStore,
    slots: Slots | None,
    ids: Ints,
    positions: Ints,
    sequences: Ints,
    sampled: Ints,
    sequence_slots: Ints,
    guesses: Ints,
    parents: Ints,
    tables: list[Ints],
    inputs: dict[str, Floats],
    draws: Sequence[tuple[int, int, int, int, float, float, float, float, float, float, int, int, int]],
    copies: Sequence[tuple[int, int, int, int]],
    starts: Sequence[tuple[int, Ints]],
    outputs: bool,
    clocked: bool,
) -> StepJob: ...
