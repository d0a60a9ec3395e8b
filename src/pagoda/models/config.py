"""Hyperparameters that all families share, read from a file's metadata, and what is left out of the ordinary.

Knows the keys that GGUF files use. What a family has besides is in its own file.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from pagoda.backends.ops import KVGroup
from pagoda.errors import ModelFileError, UnsupportedModel
from pagoda.models.metadata import Metadata
from pagoda.models.rotary import (
    Rotation,
    by_factors,
    dynamic_base,
    frequencies,
    linear,
    long_magnitude,
    yarn,
    yarn_magnitude,
)

Shapes = Mapping[str, tuple[int, ...]]
Factors = Callable[[str], Sequence[float]]
"""A tensor of rotary factors by name -> its numbers."""


@dataclass(frozen=True, slots=True)
class Scaling:
    """How rotary frequencies differ from the plain ones."""

    kind: str = "none"
    """`none`, `linear`, `dynamic`, `yarn`, `longrope`, or `factors`: a tensor of the file has them."""
    factor: float = 1.0
    original: int = 1
    """Positions that the model was first trained for."""
    magnitude: float | None = None
    """Of cosine and sine; None is what the method says."""
    fast: float = 32.0
    slow: float = 1.0
    """YaRN's borders, in turns within `original`."""
    whole: bool = True
    """Whether YaRN's borders are rounded to whole pairs."""

    @classmethod
    def read(cls, metadata: Metadata, shapes: Shapes) -> Scaling:
        """From `rope.scaling.*`, and from whether there are tensors of factors.

        Raises:
            ModelFileError: a key is absurd.
            UnsupportedModel: a kind that is not known.
        """
        kind = metadata.text("rope.scaling.type", "none")
        if "rope_freqs.weight" in shapes and kind == "none":
            return cls("factors")
        if "rope_factors_long.weight" in shapes or "rope_factors_short.weight" in shapes:
            kind = "longrope"
        if kind == "none":
            return cls()
        if kind not in ("linear", "dynamic", "yarn", "longrope"):
            raise UnsupportedModel(
                f"{metadata.path}: rotary frequencies scaled as {kind!r} are not known; linear, dynamic, yarn and "
                "longrope are"
            )
        context = metadata.count("context_length")
        original = metadata.count("rope.scaling.original_context_length", default=context)
        has_magnitude = metadata.has("rope.scaling.attn_factor")
        return cls(
            kind,
            metadata.number("rope.scaling.factor", default=max(1.0, context / original)),
            original,
            metadata.number("rope.scaling.attn_factor") if has_magnitude else None,
            metadata.number("rope.scaling.yarn_beta_fast", default=32.0),
            metadata.number("rope.scaling.yarn_beta_slow", default=1.0),
            metadata.truth("rope.scaling.yarn_truncate", default=True),
        )


@dataclass(frozen=True, slots=True)
class Config:
    """Hyperparameters, named as in the papers."""

    layers: int
    width: int
    heads: int
    kv_heads: int
    head_dim: int
    hidden: int
    vocabulary: int
    eps: float
    rope_base: float
    rope_dims: int
    context: int
    tied: bool
    """Whether the vocabulary projection is the embedding itself."""
    adjacent: bool = True
    """Whether a rotary pair's elements lie side by side in this file."""
    scaling: Scaling = field(default_factory=Scaling)
    windows: tuple[int | None, ...] = ()
    """Of each layer: how many positions it sees; None: all."""

    @classmethod
    def read(
        cls, metadata: Metadata, shapes: Shapes, *, adjacent: bool, window: int | None = None, **more: Any
    ) -> Self:
        """From a file's metadata and the shapes of its tensors.

        `adjacent` is the family's way of keeping pairs, `window` that of all layers; `more` are fields that it knows.

        Raises:
            ModelFileError: a key is missing or absurd, or keys do not go together.
            UnsupportedModel: its frequencies are scaled in an unknown way, or its values have another width than its
                keys.
        """
        width, layers = metadata.count("embedding_length"), metadata.count("block_count")
        heads = metadata.count("attention.head_count")
        head_dim = metadata.count("attention.key_length", default=max(width // heads, 1))
        if (value_dim := metadata.count("attention.value_length", default=head_dim)) != head_dim:
            raise UnsupportedModel(
                f"{metadata.path}: keys of {head_dim} and values of {value_dim} elements are not known"
            )
        fields: dict[str, Any] = {
            "layers": layers,
            "width": width,
            "heads": heads,
            "kv_heads": metadata.count("attention.head_count_kv", default=heads),
            "head_dim": head_dim,
            "hidden": metadata.count("feed_forward_length"),
            "vocabulary": shapes["token_embd.weight"][0] if "token_embd.weight" in shapes else 0,
            "eps": metadata.number("attention.layer_norm_rms_epsilon"),
            "rope_base": metadata.number("rope.freq_base", default=10000.0),
            "rope_dims": metadata.count("rope.dimension_count", default=head_dim),
            "context": metadata.count("context_length"),
            "tied": "output.weight" not in shapes,
            "adjacent": metadata.truth("rope.adjacent", default=adjacent),
            "scaling": Scaling.read(metadata, shapes),
            "windows": (window,) * layers,
        }
        config = cls(**(fields | more))
        config.check(metadata.path)
        return config

    def check(self, path: str) -> None:
        """Raise `ModelFileError` if numbers do not go together."""
        if self.heads % self.kv_heads:
            raise ModelFileError(
                f"{path}: {self.heads} query heads cannot share {self.kv_heads} key-value heads evenly"
            )
        scaled = self.scaling.kind in ("yarn", "longrope")
        if self.rope_base <= 1 or (scaled and self.scaling.original < 2) or self._overscaled:
            raise ModelFileError(
                f"{path}: a rotary base of {self.rope_base}, scaled from {self.scaling.original} positions, is none"
            )
        if self.rope_dims % 2 or self.rope_dims > self.head_dim:
            raise ModelFileError(
                f"{path}: it rotates {self.rope_dims} elements of a head, not an even number up to {self.head_dim}"
            )

    @property
    def _overscaled(self) -> bool:
        """Whether a dynamic scaling shrinks instead, or has no pair to scale by."""
        return self.scaling.kind == "dynamic" and (self.scaling.factor < 1 or self.rope_dims < 4)

    @property
    def queries(self) -> int:
        """Width of all query heads."""
        return self.heads * self.head_dim

    @property
    def keys(self) -> int:
        """Width of all key heads, or value heads."""
        return self.kv_heads * self.head_dim

    @property
    def groups(self) -> tuple[KVGroup, ...]:
        """First the layers that see all positions, even if there are none; then those of each window."""
        kinds = self._kinds
        return tuple(KVGroup(self.windows.count(kind), self.kv_heads, self.head_dim, kind) for kind in kinds)

    def place(self, i: int) -> tuple[int, int]:
        """The KV group of layer i, and which of the group's layers it is."""
        window = self.windows[i]
        return self._kinds.index(window), self.windows[:i].count(window)

    @property
    def _kinds(self) -> tuple[int | None, ...]:
        return (None, *dict.fromkeys(window for window in self.windows if window is not None))

    # --- tensors -------------------------------------------------------------------------------------------------

    def outer(self) -> dict[str, tuple[int, ...]]:
        """Tensors outside the layers, with their shapes."""
        needed = {"token_embd.weight": (self.vocabulary, self.width), "output_norm.weight": (self.width,)}
        if not self.tied:
            needed["output.weight"] = (self.vocabulary, self.width)
        return needed | dict.fromkeys(self.factor_tensors(), (self.rope_dims // 2,))

    def block(self) -> dict[str, tuple[int, ...]]:
        """Tensors of a layer, with their shapes: a Llama's."""
        return {
            "attn_norm.weight": (self.width,),
            "attn_q.weight": (self.queries, self.width),
            "attn_k.weight": (self.keys, self.width),
            "attn_v.weight": (self.keys, self.width),
            "attn_output.weight": (self.width, self.queries),
            "ffn_norm.weight": (self.width,),
            "ffn_gate.weight": (self.hidden, self.width),
            "ffn_up.weight": (self.hidden, self.width),
            "ffn_down.weight": (self.width, self.hidden),
        }

    def tensors(self) -> dict[str, tuple[int, ...]]:
        """Every tensor of the file that the model needs, with its shape."""
        block = self.block()
        return self.outer() | {f"blk.{i}.{n}": shape for i in range(self.layers) for n, shape in block.items()}

    def parts(self) -> dict[str, dict[str, int]]:
        """Tensors that hold several matrices one below the other: name -> the parts' names and rows, in order."""
        return {}

    # --- rotary tables -------------------------------------------------------------------------------------------

    def factor_tensors(self) -> tuple[str, ...]:
        """Tensors of rotary factors: read as numbers, not packed."""
        if self.scaling.kind == "factors":
            return ("rope_freqs.weight",)
        return ("rope_factors_short.weight", "rope_factors_long.weight") if self.scaling.kind == "longrope" else ()

    def variant(self, positions: int) -> str:
        """What outputs hang on besides the file, if so many positions are used: part of the fingerprint."""
        if self.scaling.kind == "dynamic":
            return f"dynamic {positions}" if positions > self.scaling.original else ""
        if self.scaling.kind != "longrope":
            return ""
        return "long" if positions > self.scaling.original else "short"

    def rotations(self, factors: Factors, positions: int) -> tuple[Rotation, ...]:
        """What the rotary tables are made of."""
        scaling, plain = self.scaling, frequencies(self.rope_base, self.rope_dims)
        magnitude = 1.0
        if scaling.kind == "linear":
            plain = linear(plain, scaling.factor)
        elif scaling.kind == "dynamic":
            base = dynamic_base(self.rope_base, self.rope_dims, scaling.factor, positions, scaling.original)
            plain = frequencies(base, self.rope_dims)
        elif scaling.kind == "yarn":
            plain = yarn(
                self.rope_base, self.rope_dims, scaling.factor, scaling.original, scaling.fast, scaling.slow,
                scaling.whole,
            )  # fmt: skip
            magnitude = yarn_magnitude(scaling.factor)
        elif scaling.kind == "factors":
            plain = by_factors(plain, factors("rope_freqs.weight"))
        elif scaling.kind == "longrope":
            plain = by_factors(plain, factors(f"rope_factors_{self.variant(positions)}.weight"))
            magnitude = long_magnitude(self.context / scaling.original, scaling.original)
        return (Rotation(tuple(plain), self.adjacent, scaling.magnitude or magnitude),)

    @property
    def table_dims(self) -> tuple[int, ...]:
        """Rotated elements of a head in each table."""
        return (self.rope_dims,)
