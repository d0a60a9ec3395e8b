"""`quantization_config` of a config.json: how the matrices of a quantised checkpoint are stored, and which not.

Knows what AutoAWQ, GPTQ's writers, compressed-tensors and FP8 checkpoints write there. Reads no tensor: hf_quantized.py
does, as is said here. How activations were meant to be quantised changes nothing: ours have their own formats.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NoReturn

from pagoda.errors import ModelFileError, UnsupportedModel

Layout = Literal["awq", "gptq", "packed", "int8", "fp8"]
SUPPORTED = (
    "awq (4 bits, gemm), gptq (4 and 8 bits), fp8, fbgemm_fp8, and compressed-tensors (pack-quantized of 4 and 8 bits, "
    "int-quantized of 8 bits, float-quantized of 8 bits)"
)
MOST_OF_PATTERN = 256
"""Characters of a regular expression."""
MOST_REPEATS = 4
"""In one: what is tried for a name of n characters grows as n to this power."""


@dataclass(frozen=True, slots=True)
class Weights:
    """How a matrix is stored."""

    layout: Layout
    bits: int = 8
    group: int = 0
    """Inputs that share a scale; 0: all of a row."""
    symmetric: bool = True
    """Whether all zero points are the middle of the integers' range."""
    less: int = 0
    """What stored zero points are less than what they mean."""
    blocks: tuple[int, int] | None = None
    """Rows and columns of a matrix that share a scale, of fp8."""


@dataclass(frozen=True, slots=True)
class Scheme:
    """Of a whole checkpoint."""

    method: str
    groups: tuple[tuple[tuple[str, ...], Weights], ...]
    """(targets, how those are stored), the first that fits counts: names, `re:` patterns, or classes of modules."""
    ignored: tuple[str, ...] = ()
    """Names or `re:` patterns."""

    def ignores(self, module: str) -> bool:
        """Whether a module is to be left as it is."""
        return any(_fits(each, module) for each in self.ignored)

    def weights(self, module: str) -> Weights | None:
        """How a module's matrix is stored, if it is quantised."""
        kind = "Embedding" if module.endswith("embed_tokens") else "Linear"
        fitting = (w for targets, w in self.groups if any(t == kind or _fits(t, module) for t in targets))
        return next(fitting, None)


def _fits(pattern: str, module: str) -> bool:
    """A name means a module, those within it, and those called so in any layer."""
    if pattern.startswith("re:"):
        return re.match(pattern[3:], module) is not None
    return f".{pattern}." in f".{module}."


def read_scheme(config: object, path: str) -> Scheme | None:
    """Read `quantization_config`; None if there is none.

    Raises:
        ModelFileError: a value is absurd.
        UnsupportedModel: a way to store matrices that is not known.
    """
    if not config:
        return None
    if not isinstance(config, dict):
        raise ModelFileError(f"{path}: quantization_config must be an object, found {config!r:.60}")
    method = config.get("quant_method")
    if not isinstance(method, str) or method not in _METHODS:
        raise UnsupportedModel(
            f"{path}: weights quantised by quant_method {method!r:.40} cannot be read; these can: {SUPPORTED}"
        )
    return _METHODS[method](_Reader(config, path))


class _Reader:
    """Values of an object of the configuration, checked."""

    def __init__(self, values: Mapping[str, Any], path: str) -> None:
        self.values = values
        self.path = path

    def refuse(self, what: str) -> NoReturn:
        raise UnsupportedModel(f"{self.path}: {what}; these can be read: {SUPPORTED}")

    def number(self, key: str, known: Sequence[int], default: int | None = None) -> int:
        found = self.values.get(key, default)
        if type(found) is not int:
            raise ModelFileError(f"{self.path}: {key} of quantization_config must be a number, found {found!r:.60}")
        if found not in known:
            self.refuse(f"weights of {key} {found} cannot be read, of {' or '.join(map(str, known))} they can")
        return found

    def group(self, key: str = "group_size") -> int:
        """Inputs that share a scale; 0 for all of them, which is written as -1."""
        found = self.values.get(key, -1)
        if type(found) is not int or not (found == -1 or 1 <= found < 2**24):
            raise ModelFileError(f"{self.path}: {key} of quantization_config must be a size or -1, found {found!r:.60}")
        if found % 32 and found != -1:
            self.refuse(f"groups of {found} weights cannot be read, of a multiple of 32 they can")
        return max(found, 0)

    def choice(self, key: str, known: Sequence[str], default: str) -> str:
        found = self.values.get(key) or default
        if found not in known:
            self.refuse(f"weights with {key} {found!r:.40} cannot be read, with {' or '.join(known)} they can")
        return str(found)

    def flag(self, key: str, default: bool) -> bool:
        found = self.values.get(key, default)
        if not isinstance(found, bool):
            raise ModelFileError(
                f"{self.path}: {key} of quantization_config must be true or false, found {found!r:.60}"
            )
        return found

    def names(self, *keys: str, patterns: bool = False) -> tuple[str, ...]:
        """Modules' names, of the first key that is there."""
        found: Any = next((self.values[key] for key in keys if self.values.get(key)), [])
        if not isinstance(found, list) or not all(isinstance(each, str) for each in found):
            raise ModelFileError(f"{self.path}: {keys[0]} must be a list of modules' names, found {found!r:.60}")
        for each in found if patterns else ():
            self._check_pattern(each)
        return tuple(found)

    def _check_pattern(self, text: str) -> None:
        if not text.startswith("re:"):
            return
        plain = re.sub(r"\\.", "", text)
        if (
            len(text) > MOST_OF_PATTERN
            or len(re.findall(r"[*+{]", plain)) > MOST_REPEATS
            or re.search(r"\)[*+{]", plain)
        ):
            self.refuse(f"the pattern {text!r:.80} would take too long to look for")
        try:
            re.compile(text[3:])
        except (re.error, RecursionError, OverflowError) as error:
            raise ModelFileError(f"{self.path}: {text!r:.80} is no regular expression: {error!s:.60}") from error

    def object(self, key: str) -> _Reader:
        found = self.values.get(key)
        if not isinstance(found, dict):
            raise ModelFileError(f"{self.path}: {key} of quantization_config must be an object, found {found!r:.60}")
        return _Reader(found, self.path)


def _awq(config: _Reader) -> Scheme:
    """AutoAWQ (Lin et al. 2023)."""
    config.choice("version", ("gemm", "GEMM"), "gemm")
    if not config.flag("zero_point", True):
        config.refuse("AWQ weights without zero points cannot be read")
    weights = Weights("awq", config.number("bits", (4,)), config.group(), symmetric=False)
    return Scheme("awq", ((("Linear",), weights),), config.names("modules_to_not_convert"))


def _gptq(config: _Reader) -> Scheme:
    """AutoGPTQ and GPTQModel (Frantar et al. 2022); `v1` files have zero points less 1."""
    form = config.choice("checkpoint_format", ("gptq", "gptq_v2"), "gptq")
    if config.values.get("dynamic"):
        config.refuse("GPTQ weights with settings of their own for some modules (`dynamic`) cannot be read")
    weights = Weights(
        "gptq", config.number("bits", (4, 8)), config.group(), config.flag("sym", False), less=int(form == "gptq")
    )
    return Scheme("gptq", ((("Linear",), weights),), config.names("modules_to_not_convert"))


def _fp8(config: _Reader) -> Scheme:
    """As DeepSeek's checkpoints, fbgemm's, and those that transformers writes."""
    found = config.values.get("weight_block_size")
    ignored = config.names("modules_to_not_convert", "ignored_layers")
    weights = Weights("fp8", blocks=None if found is None else _blocks(config, found))
    return Scheme("fp8", ((("Linear", "Embedding"), weights),), ignored)


def _blocks(config: _Reader, found: object) -> tuple[int, int]:
    if not isinstance(found, list) or len(found) != 2 or not all(type(n) is int and 1 <= n < 2**24 for n in found):
        raise ModelFileError(f"{config.path}: blocks of weights must be of two sizes, found {found!r:.60}")
    if found[1] % 32:
        config.refuse(f"blocks of {found[1]} columns cannot be read, of a multiple of 32 they can")
    return found[0], found[1]


FORMATS = {"pack-quantized": "packed", "int-quantized": "int8", "float-quantized": "fp8", "naive-quantized": ""}


def _compressed_tensors(config: _Reader) -> Scheme:
    """compressed-tensors, as llm-compressor writes it."""
    sparsity = config.values.get("sparsity_config")
    if isinstance(sparsity, dict) and sparsity.get("format", "dense") != "dense":
        config.refuse(f"sparse weights ({sparsity.get('format')!r:.40}) cannot be read")
    if config.values.get("transform_config"):
        config.refuse("weights that are transformed (`transform_config`) cannot be read")
    form = config.choice("format", (*FORMATS, "mixed-precision"), "pack-quantized")
    groups = []
    for name in config.object("config_groups").values:
        group = config.object("config_groups").object(name)
        if (weights := _group(group, form)) is not None:
            groups.append((group.names("targets", patterns=True), weights))
    return Scheme("compressed-tensors", tuple(groups), config.names("ignore", patterns=True))


def _group(group: _Reader, form: str) -> Weights | None:
    """How the matrices of one group are stored; None if they are as they were."""
    if group.values.get("weights") is None:
        return None
    weights = group.object("weights")
    form = group.choice("format", tuple(FORMATS), form)
    kind = weights.choice("type", ("int", "float"), "int")
    layout = FORMATS[form] or ("fp8" if kind == "float" else "int8")
    if (kind == "float") != (layout == "fp8"):
        group.refuse(f"{kind} weights stored as {form} cannot be read")
    bits = weights.number("num_bits", (4, 8) if layout == "packed" else (8,), 8)
    strategy = weights.choice(
        "strategy", ("tensor", "channel", "group", "block"), "group" if weights.values.get("group_size") else "tensor"
    )
    if strategy == "block" and layout != "fp8":
        group.refuse(f"{kind} weights with scales for blocks cannot be read")
    symmetric = weights.flag("symmetric", True)
    if layout == "fp8":
        if not symmetric or strategy == "group":
            group.refuse("float weights with zero points or with scales for groups cannot be read")
        blocks = _blocks(weights, weights.values.get("block_structure")) if strategy == "block" else None
        return Weights("fp8", blocks=blocks)
    size = weights.group() if strategy == "group" else 0
    return Weights("packed" if layout == "packed" else "int8", bits, size, symmetric)


_METHODS = {
    "awq": _awq,
    "gptq": _gptq,
    "fp8": _fp8,
    "fbgemm_fp8": _fp8,
    "compressed-tensors": _compressed_tensors,
}
