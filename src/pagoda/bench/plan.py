"""What serving a model here will take and can reach, each number with its arithmetic, from the file's header alone.

The numbers are `runner.sizing`'s, which the engine starts with; this adds the process, bandwidth and words.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from pagoda.backends.machine import free_memory
from pagoda.bench.machine import read_bandwidth
from pagoda.catalog import Progress, open_model
from pagoda.config import EngineConfig
from pagoda.plan import most_pages
from pagoda.runner.sizing import KV_AUTO, KV_SHARE, TYPICAL, Sizing, size
from pagoda.text.tokenizer import Tokenizer

STEPS = (1, 8, 32)
"""Sequences decoded together, for which a mixture's reads are told."""


def resident_bytes() -> int:
    """Memory of this process that is in RAM."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, slots=True)
class Plan:
    """A model's numbers on this machine, or on one with another amount of free memory. Sizes in bytes."""

    sizing: Sizing
    process: int
    """Python, a server's modules and the tokenizer: what this process has while it plans."""
    bandwidth: float | None
    """Bytes a second read by all threads from a buffer as large as the weights; None if it was not measured."""

    @property
    def started(self) -> int:
        """Resident memory of a started engine."""
        return self.process + self.sizing.started

    @property
    def most(self) -> int:
        """And once a step has been as large as steps may be."""
        return self.started + self.sizing.step

    def decode(self, context: int) -> float | None:
        """Tokens a second of one sequence after `context` tokens, if reading is all that limits it."""
        return None if self.bandwidth is None else self.bandwidth / self.sizing.token_read(context)

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        s = self.sizing
        return {
            "model": s.model,
            "weights": [asdict(w) for w in s.weights],
            "weight_bytes": s.weight_bytes,
            "kv_format": s.kv_format,
            "kv_groups": [
                asdict(g) | {"page_bytes": p, "pages": n}
                for g, p, n in zip(s.groups, s.page_bytes, s.pages, strict=True)
            ],
            "kv_token_bytes": s.token_bytes,
            "kv_token_layer_bytes": [
                p / s.page_size / max(g.layers, 1) for g, p in zip(s.groups, s.page_bytes, strict=True)
            ],
            "page_size": s.page_size,
            "page_bytes": sum(s.page_bytes),
            "free_bytes": s.free,
            "kv_limit_bytes": s.kv_limit,
            "pages": s.pages[0],
            "windows_for": s.windows_for,
            "kv_bytes": s.kv_bytes,
            "max_model_len": s.longest,
            "max_num_seqs": s.max_num_seqs,
            "sequences": {str(s.longest): s.sequences(s.longest), str(TYPICAL): s.sequences(TYPICAL)},
            "rope_bytes": s.rope,
            "step_bytes": s.step,
            "process_bytes": self.process,
            "started_bytes": self.started,
            "most_bytes": self.most,
            "step_weight_bytes": {str(n): s.reads.step(n) for n in STEPS},
            "expert_bytes": s.reads.experts,
            "active_experts": [{str(n): m.active(n) for n in STEPS} for m in s.reads.mixtures],
            "decode_read_bytes": {"0": s.token_read(0), str(s.longest): s.token_read(s.longest)},
            "read_bytes_s": self.bandwidth,
            "decode_tok_s": None if self.bandwidth is None else {str(c): self.decode(c) for c in (0, s.longest)},
        }

    def lines(self) -> Iterator[str]:
        """For people: every number with its arithmetic."""
        s = self.sizing
        yield f"model      {s.model}, up to {s.max_model_len} tokens"
        yield from weight_lines(s)
        yield from kv_lines(s)
        yield f"rotary     {_mb(s.rope)}: cos and sin of {s.max_model_len} positions, twice"
        yield f"process    {_mb(self.process)}: Python, its modules and the tokenizer, as they are in this process"
        yield f"memory     {_mb(self.started)} once started: weights + KV + rotary + process"
        yield f"           {_mb(self.most)} at most: {_mb(s.step)} of buffers grow with the largest step"
        yield from self._decode_lines()

    def _decode_lines(self) -> Iterator[str]:
        s = self.sizing
        for context in (0, s.longest):
            kv = s.token_read(context) - s.token_weights
            tokens = f"{context} x {s.token_bytes} bytes" if kv == context * s.token_bytes else f"{kv} bytes"
            read = f"{_mb(s.token_weights)} of weights + {tokens} of KV"
            total = f"{_mb(s.token_read(context))} a token"
            speed = self.decode(context)
            if speed is not None and self.bandwidth is not None:
                total += f"; {self.bandwidth / 1e9:.1f} GB/s / that = {speed:.0f} tokens/s at most"
            yield f"decode     one sequence after {context} tokens reads {read} = {total}"
        yield from mixture_lines(s)
        if self.bandwidth is None:
            yield "           --measure divides this machine's read bandwidth by it"


def _mb(size: float) -> str:
    return f"{size / 1e6:.1f} MB"


def weight_lines(s: Sizing) -> Iterator[str]:
    """Weights, packed, by their format in the file."""
    yield f"weights    {_mb(s.weight_bytes)} packed"
    for w in s.weights:
        yield f"           {w.format}: {w.tensors} tensors, {w.numbers} numbers, {w.bytes} bytes"


def mixture_lines(s: Sizing) -> Iterator[str]:
    """Of a mixture: weights that decoding steps read; experts that none of a step's rows chose are left alone."""
    r = s.reads
    for m in r.mixtures:
        yield (
            f"experts    {m.chosen} of {m.experts} for each token and layer; all of them are {_mb(m.bytes)}, "
            f"one is {_mb(m.bytes / m.experts)} in all layers together"
        )
    for rows in STEPS if r.mixtures else ():
        active = " + ".join(f"{m.active(rows):.1f} x {_mb(m.bytes / m.experts)} of experts" for m in r.mixtures)
        yield (
            f"           a step of {rows} reads {_mb(r.shared + rows * r.embedding)} of other weights + {active} = "
            f"{_mb(r.step(rows))}; with all experts it would be {_mb(r.shared + rows * r.embedding + r.experts)}"
        )
    if r.mixtures:
        yield "           (active on average, if all are liked alike: E (1 - (1 - k / E)^rows) of E experts)"


def kv_lines(s: Sizing) -> Iterator[str]:
    """Keys and values: of a token, of a page, and how many of each there are."""
    for g, page in zip(s.groups, s.page_bytes, strict=True):
        if g.layers:
            layer, window = page / s.page_size / g.layers, f" with a window of {g.window}" if g.window else ""
            yield (
                f"KV         {s.kv_format}: {layer:g} bytes a token and layer (keys and values of {g.heads} heads x "
                f"{g.head_dim}) x {g.layers} layers{window} = {page / s.page_size:g} bytes a token"
            )
    each = sum(s.page_bytes)
    if len(s.groups) == 1:
        yield f"page       {s.page_size} tokens x {each / s.page_size:g} = {each} bytes"
    yield (
        f"free       {_mb(s.free)}; KV may take {KV_SHARE:.0%} of what the weights leave: "
        f"{KV_SHARE} x ({_mb(s.free)} - {_mb(s.weight_bytes)}) = {_mb(s.kv_limit)}"
    )
    wanted = "kv_memory" if s.kv_asked is not None else f"unasked, {_mb(KV_AUTO)} or one full sequence"
    needed = -(-s.max_model_len // s.page_size) * s.max_num_seqs
    least = (
        f"the least of {wanted}, that limit, and {needed} for {s.max_num_seqs} sequences of {s.max_model_len} tokens"
    )
    if len(s.groups) == 1:
        yield f"pages      {s.pages[0]} = {_mb(s.kv_bytes)}: {least}"
    else:
        yield from _group_lines(s)
        yield f"           together {_mb(s.kv_bytes)}: {least}"
    yield (
        f"sequences  {s.sequences(s.longest)} of {s.longest} tokens (the longest), {s.sequences(TYPICAL)} of "
        f"{min(TYPICAL, s.longest)}; at most {s.max_num_seqs} run at once"
    )


def _group_lines(s: Sizing) -> Iterator[str]:
    """Pages of each group, where they are not all alike."""
    for g, page, pages in zip(s.groups, s.page_bytes, s.pages, strict=True):
        if not g.layers:
            continue
        line = f"pages      {pages} x {s.page_size} tokens x {page / s.page_size:g} = {_mb(pages * page)}"
        if g.window is None:
            yield f"{line}: all that the windows leave"
            continue
        one, more = (most_pages(g.window, n, c, s.page_size) for n, c in ((s.max_model_len, s.rows), (TYPICAL, 1)))
        most = f"{one} + {s.windows_for - 1} x {more}"
        yield (
            f"{line}: {most}, for {s.windows_for} sequences, each a window of {g.window} and a page, one of them the "
            f"{s.rows} rows of a step besides; or as many as there would be if all groups had the same"
        )
        tokens = min(s.max_model_len, s.longest)
        held = most_pages(g.window, tokens, 1, s.page_size)
        yield (
            f"window     a sequence of {tokens} tokens holds {held} of these pages, {_mb(held * page)}; without a "
            f"window {-(-tokens // s.page_size)}, {_mb(-(-tokens // s.page_size) * page)}"
        )


def short_lines(s: Sizing) -> Iterator[str]:
    """What a server says of itself as it starts: one line each for weights, KV and sequences."""
    forms = ", ".join(f"{w.format} {_mb(w.bytes)}" for w in s.weights)
    yield f"weights {_mb(s.weight_bytes)} packed ({forms})"
    kinds = [(n, page) for g, n, page in zip(s.groups, s.pages, s.page_bytes, strict=True) if g.layers]
    pages = " + ".join(f"{n} pages of {s.page_size} tokens x {page} bytes" for n, page in kinds)
    yield f"kv {s.kv_format}: {pages} = {_mb(s.kv_bytes)}"
    yield (
        f"sequences: {s.sequences(s.longest)} of {s.longest} tokens or {s.sequences(TYPICAL)} of "
        f"{min(TYPICAL, s.longest)} fit, at most {s.max_num_seqs} at once"
    )


def plan_model(
    config: EngineConfig, *, memory: int | None = None, measure: bool = False, progress: Progress | None = None
) -> Plan:
    """Plan for a model; a built-in one that is not here is fetched first.

    Args:
        config: as for the engine.
        memory: free bytes to plan for; None is what is free here.
        measure: whether to measure bandwidth, in about a second.
        progress: is told how far the download is.

    Raises:
        UnknownModel, ModelError, InvalidConfig, MemoryLimit: as starting an engine would.
    """
    with open_model(config.model.model, progress=progress, quantize=config.model.quantize) as file:
        tokenizer = Tokenizer.from_metadata(file.metadata)
        sizing = size(file, config, free_memory() if memory is None else memory)
        import_module("pagoda.server.app")  # a server's modules are part of its process
        import_module("pagoda.server.run")
        process = resident_bytes()
        del tokenizer
    threads = config.machine.threads
    bandwidth = read_bandwidth(max(sizing.token_weights, 2**21), threads, 1.0) if measure else None
    return Plan(sizing, process, bandwidth)
