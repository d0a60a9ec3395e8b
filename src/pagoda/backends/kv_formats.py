"""Which layer keeps its keys and values in which format. Knows names of formats only."""

from __future__ import annotations

from collections.abc import Sequence

from pagoda.backends.ops import KVFormats, KVGroup
from pagoda.config import KV_FORMATS
from pagoda.errors import InvalidConfig


def formats_by_layer(groups: Sequence[KVGroup], kv_format: KVFormats) -> list[list[str]]:
    """Of each group, the format of each layer.

    Raises:
        InvalidConfig: a format that there is not.
        ValueError: not one for each layer.
    """
    formats = [[kv_format] * g.layers for g in groups] if isinstance(kv_format, str) else list(map(list, kv_format))
    if [len(each) for each in formats] != [group.layers for group in groups]:
        raise ValueError(f"a KV format is needed for each layer of {tuple(groups)}, got {kv_format}")
    for form in [kv_format] if isinstance(kv_format, str) else [form for each in formats for form in each]:
        if form not in KV_FORMATS:
            raise InvalidConfig(f"kv_format must be one of {KV_FORMATS}, got {form!r}")
    return formats
