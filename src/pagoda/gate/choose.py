"""`auto`: the smallest format that passed for this very model, else the default; and a line that says which and why.

Only verdicts of the same weights, arithmetic and activations count: their fingerprint is made again and compared.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace

from pagoda.backends.cpu import CpuBackend
from pagoda.backends.ops import KVGroup
from pagoda.catalog import AnyModel, HuggingDirectory, ModelFile, Progress, Quantized, open_model
from pagoda.config import AUTO, FINER, EngineConfig, ModelConfig, split_format
from pagoda.gate import shelf
from pagoda.gate.verdict import Verdict
from pagoda.models import read_config
from pagoda.models.config import Config
from pagoda.runner.load import fingerprint
from pagoda.runner.sizing import page_bytes

_DEFAULT = ModelConfig()


def open_settled(
    config: EngineConfig, progress: Progress | None = None
) -> tuple[AnyModel, EngineConfig, tuple[str, ...]]:
    """Open a configuration's model, its formats settled: the file, the configuration without `auto`, and what to say.

    Raises:
        UnknownModel, UnsupportedModel, DownloadError, ModelFileError: as `open_model`.
    """
    asked = config.model
    if AUTO not in (asked.quantize, asked.kv_format):
        return open_model(asked.model, progress=progress, quantize=asked.quantize), config, ()
    with ExitStack() as undo:
        source = open_model(asked.model, progress=progress)
        undo.callback(source.close)
        assert not isinstance(source, Quantized), "no format was asked for"
        settled, line = choose(source, asked)
        file = source if settled.quantize is None else Quantized(source, settled.quantize)
        undo.pop_all()
    return file, replace(config, model=settled), (line,)


def choose(source: ModelFile | HuggingDirectory, asked: ModelConfig) -> tuple[ModelConfig, str]:
    """Settle `auto` for an open model, and say why in one line."""
    plain = replace(
        asked,
        quantize=_DEFAULT.quantize if asked.quantize == AUTO else asked.quantize,
        kv_format=_DEFAULT.kv_format if asked.kv_format == AUTO else asked.kv_format,
    )
    known = [v for v in shelf.every() if _fits(v, asked) and _is_of(v, source, asked)]
    best = min((v for v in known if v.passed), key=lambda v: _bytes(source, _config(v, asked)), default=None)
    failed = [f"{v.format} failed on {v.date[:10]}" for v in known if not v.passed]
    if best is not None and _bytes(source, _config(best, asked)) < _bytes(source, plain):
        what = f"auto: {best.format}, which passed on {best.date[:10]} against {best.against}"
        return _config(best, asked), f"{what}: {best['divergence']}"
    kept = "the file's own weights" if plain.quantize is None else f"{plain.quantize} weights"
    why = "; ".join(failed) or "none was measured for this model"
    dense = asked.quantize == AUTO and changes(source, Quantized(source, "q8_0"))
    command = f"pagoda eval {asked.model}" + " --weights q8_0,q4_k" * dense
    return plain, f"auto: {kept}, {plain.kv_format} KV: no smaller format has passed ({why}); to measure: {command}"


def changes(source: AnyModel, quantized: AnyModel) -> bool:
    """Whether any tensor is in another format: a file may be quantised already."""
    return any(t.format.name != source.tensors[name].format.name for name, t in quantized.tensors.items())


def _config(verdict: Verdict, asked: ModelConfig) -> ModelConfig:
    return replace(asked, quantize=verdict.quantize, kv_format=verdict.kv_format)


def _fits(verdict: Verdict, asked: ModelConfig) -> bool:
    """Whether it is of what was asked for, where that is not left open."""
    return (
        asked.quantize in (AUTO, verdict.quantize)
        and asked.kv_format in (AUTO, verdict.kv_format)
        and asked.activations == verdict.activations
    )


def _is_of(verdict: Verdict, source: ModelFile | HuggingDirectory, asked: ModelConfig) -> bool:
    """Whether an engine would compute today what was judged then."""
    if verdict.source != source.digest():
        return False
    config = _config(verdict, asked)
    file = source if config.quantize is None else Quantized(source, config.quantize)
    shape = read_config(source)
    variant = shape.variant(asked.max_model_len or shape.context)
    return fingerprint(file.digest(), EngineConfig(config), CpuBackend(threads=1), variant) == verdict.fingerprint


def _bytes(source: ModelFile | HuggingDirectory, config: ModelConfig) -> tuple[int, int]:
    """Of all weights, and of a token's keys and values: smaller weights come first."""
    file = source if config.quantize is None else Quantized(source, config.quantize)
    return (
        sum(tensor.size for tensor in file.tensors.values()),
        _token_bytes(read_config(source), config.kv_format),
    )


def _token_bytes(shape: Config, kv_format: str) -> int:
    """Of a token's keys and values in all layers."""
    name, finer = split_format(kv_format)
    base, fine = (page_bytes(KVGroup(1, shape.kv_heads, shape.head_dim), 1, f) for f in (name, FINER.get(name, name)))
    return (shape.layers - len(finer)) * base + len(finer) * fine
