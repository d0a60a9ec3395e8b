"""The formats by name and by ggml's type id, and the names of those ids that Pagoda cannot read.

Some formats ggml does not have: blocks of our own for what checkpoints hold.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, runtime_checkable

from pagoda.backends.ops import Bytes, Floats, StoredFormat
from pagoda.errors import UnsupportedModel
from pagoda.quant.bf16 import BF16
from pagoda.quant.f8 import F8
from pagoda.quant.f16 import F16
from pagoda.quant.f32 import F32
from pagoda.quant.grid import Grid, Integers
from pagoda.quant.iq4_nl import IQ4_NL
from pagoda.quant.iq4_xs import IQ4_XS
from pagoda.quant.mxfp4 import MXFP4
from pagoda.quant.q2_k import Q2_K
from pagoda.quant.q3_k import Q3_K
from pagoda.quant.q4_0 import Q4_0
from pagoda.quant.q4_1 import Q4_1
from pagoda.quant.q4_k import Q4_K
from pagoda.quant.q4_z import Q4Z
from pagoda.quant.q5_0 import Q5_0
from pagoda.quant.q5_1 import Q5_1
from pagoda.quant.q5_k import Q5_K
from pagoda.quant.q6_k import Q6_K
from pagoda.quant.q8_0 import Q8_0
from pagoda.quant.q8_z import Q8Z


@runtime_checkable
class Quantizer(StoredFormat, Protocol):
    """A format that can also be written."""

    def quantize(self, floats: Floats) -> Bytes:
        """[blocks, block] -> [blocks, block_bytes]."""
        ...


@runtime_checkable
class GridQuantizer(Quantizer, Protocol):
    """A format of scales and integers, which may be chosen apart."""

    def grid(self, floats: Floats, weights: Floats | None = None) -> Grid:
        """Scales for [blocks, block] numbers; `weights`, of the same shape, say how much an error counts."""
        ...

    def pack(self, grid: Grid, integers: Integers) -> Bytes:
        """A grid's scales, and integers [blocks, block] within its bounds -> [blocks, block_bytes]."""
        ...


_BY_ID: dict[int, StoredFormat] = {
    0: F32(),
    1: F16(),
    2: Q4_0(),
    3: Q4_1(),
    6: Q5_0(),
    7: Q5_1(),
    8: Q8_0(),
    10: Q2_K(),
    11: Q3_K(),
    12: Q4_K(),
    13: Q5_K(),
    14: Q6_K(),
    20: IQ4_NL(),
    23: IQ4_XS(),
    30: BF16(),
    39: MXFP4(),
}
Q4_Z: Mapping[int, Q4Z] = {block: Q4Z(block) for block in (32, 128)}
Q8_Z: Mapping[int, Q8Z] = {block: Q8Z(block) for block in (32, 128)}
"""By the numbers of a block."""
F8S: Mapping[str, F8] = {"F8_E4M3": F8("f8_e4m3", 0x7E), "F8_E5M2": F8("f8_e5m2", 0x7B)}
"""By safetensors' names."""
_OURS: tuple[StoredFormat, ...] = (*Q4_Z.values(), *Q8_Z.values(), *F8S.values())
_BY_NAME = {stored.name: stored for stored in (*_BY_ID.values(), *_OURS)}
_IDS = {stored.name: type_id for type_id, stored in _BY_ID.items()}

# ggml's other types, so that an error can name what it found.
_UNREADABLE = {
    9: "q8_1",
    15: "q8_k",
    16: "iq2_xxs",
    17: "iq2_xs",
    18: "iq3_xxs",
    19: "iq1_s",
    21: "iq3_s",
    22: "iq2_s",
    24: "i8",
    25: "i16",
    26: "i32",
    27: "i64",
    28: "f64",
    29: "iq1_m",
    34: "tq1_0",
    35: "tq2_0",
    40: "nvfp4",
    41: "q1_0",
}


def names() -> tuple[str, ...]:
    """Every format that can be read."""
    return tuple(_BY_NAME)


def ggml_names() -> tuple[str, ...]:
    """Those of them that ggml has: what GGUF files hold."""
    return tuple(_IDS)


def by_name(name: str) -> StoredFormat:
    """The format of a name such as `q4_1`.

    Raises:
        UnsupportedModel: there is none.
    """
    if name not in _BY_NAME:
        raise UnsupportedModel(f"weight format {name!r} cannot be read; these can: {', '.join(_BY_NAME)}")
    return _BY_NAME[name]


def by_id(type_id: int) -> StoredFormat:
    """The format of ggml's type id, as GGUF files give it.

    Raises:
        UnsupportedModel: there is none; the message names the type.
    """
    if type_id not in _BY_ID:
        found = _UNREADABLE.get(type_id, "unknown")
        raise UnsupportedModel(
            f"weight format {found} (ggml type {type_id}) cannot be read; these can: {', '.join(_IDS)}"
        )
    return _BY_ID[type_id]


def type_id(name: str) -> int:
    """ggml's type id of a format's name: the inverse of `by_id`.

    Raises:
        UnsupportedModel: ggml has no such format.
    """
    if name not in _IDS:
        raise UnsupportedModel(f"GGUF files have no weight format {name!r}; they have {', '.join(_IDS)}")
    return _IDS[name]


def quantizer(name: str) -> Quantizer:
    """The format of a name, if Pagoda can write it.

    Raises:
        UnsupportedModel: it cannot.
    """
    stored = by_name(name)
    if not isinstance(stored, Quantizer):
        raise UnsupportedModel(f"weight format {name!r} can be read but not written")
    return stored
