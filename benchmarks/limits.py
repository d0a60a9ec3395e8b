"""What this machine allows, measured again and again, and what share of it a measured cell makes use of.

Two bounds (the roofline: Williams, Waterman, Patterson 2009). A step of one sequence reads every weight and the keys
and values of its context, so the bytes it moves are held against read bandwidth; of a mixture's experts it reads those
that some row chose. A prompt is products, a multiply-add counting as two operations, so these are held against the peak
of int8 multiply-adds, whatever the activations are. A step of several sequences is held against the nearer of the two.
"""

from __future__ import annotations

import math
import re
from typing import Any

from pagoda.backends.cpu import chosen_isa
from pagoda.backends.machine import free_memory
from pagoda.bench.machine import Machine, measure_machine
from pagoda.catalog import ModelFile
from pagoda.config import EngineConfig
from pagoda.models import read_config
from pagoda.models.mixtral import MixtureConfig
from pagoda.runner.sizing import size

EXPERT = r"\.ffn_(gate|up|down)(_exps|\.\d+)\.weight"
"""Tensors of which a row sees a few experts' parts."""


class Work:
    """Bytes and operations of one model's steps, from its file's header."""

    def __init__(self, path: str) -> None:
        with ModelFile(path) as source:
            config = read_config(source)
            self._sizing = size(source, EngineConfig(), free_memory())
            matrices = {name: math.prod(dims) for name, dims in config.tensors().items() if len(dims) > 1}
        within = {name: n for name, n in matrices.items() if re.fullmatch(r"blk\..*\.weight", name)}
        experts = sum(n for name, n in within.items() if re.search(EXPERT, name))
        share = config.chosen / config.experts if isinstance(config, MixtureConfig) else 1
        self._row = sum(within.values()) - round(experts * (1 - share))
        self._head = matrices["token_embd.weight"]
        self._seen = config.layers * config.heads * config.head_dim

    def decode_bytes(self, context: int, sequences: int = 1) -> int:
        """That a step reads: weights, of a mixture's experts those that are active on average, keys and values."""
        return self._sizing.step_read(sequences, context)

    def decode_operations(self, context: int, sequences: int = 1) -> int:
        """Of a step: each row's products with all weights, with the vocabulary, with keys and values."""
        return 2 * sequences * (self._row + self._head + 2 * self._seen * (context + 1))

    def prefill_operations(self, tokens: int) -> int:
        """Of a whole prompt: products with every weight for each row, with the vocabulary for the last row alone, and
        query by key and weight by value for each pair of positions of which one sees the other."""
        pairs = tokens * (tokens + 1) // 2
        return 2 * (self._row * tokens + self._head + 2 * self._seen * pairs)


class Limits:
    """The machine's bounds: the best of however often they were measured."""

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._isa = chosen_isa()
        self._machine: Machine | None = None
        self.read_gb_s = 0.0
        self.int8_gop_s = 0.0

    def measure(self) -> None:
        """Once more."""
        self._machine = measure_machine(self._threads, 1.0)
        self.read_gb_s = max(self.read_gb_s, self._machine.read_gb_s)
        self.int8_gop_s = max(self.int8_gop_s, self._machine.peaks[self._isa].int8_gop_s)

    def share(self, work: Work, cell: str, seconds: float) -> dict[str, Any] | None:
        """Of the limit that binds this cell, at `seconds` a token; None if it is not one of the two kinds."""
        if match := re.fullmatch(r"prefill(\d+)", cell):
            tokens = int(match[1])
            does, unit, limit = work.prefill_operations(tokens) / (seconds * tokens), "Gop/s", self.int8_gop_s
        elif match := re.fullmatch(r"decode(\d+)b(\d+)", cell):
            context, batch = int(match[1]), int(match[2])
            bytes_s = work.decode_bytes(context, batch) / (seconds * batch)
            operations_s = work.decode_operations(context, batch) / (seconds * batch)
            does, unit, limit = bytes_s, "GB/s", self.read_gb_s
            if operations_s * self.read_gb_s > bytes_s * self.int8_gop_s:
                does, unit, limit = operations_s, "Gop/s", self.int8_gop_s
        else:
            return None
        return {"does": does / 1e9, "unit": unit, "limit": limit, "share": does / 1e9 / limit} if limit else None

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        machine = self._machine.as_dict() if self._machine else {}
        return {**machine, "read_gb_s": self.read_gb_s, "int8_gop_s": self.int8_gop_s}

    def __str__(self) -> str:
        return (
            f"{self._threads} threads, {self._isa}: {self.read_gb_s:.1f} GB/s read, "
            f"{self.int8_gop_s:.0f} Gop/s of int8 multiply-adds"
        )
