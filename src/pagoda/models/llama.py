"""The Llama family (Touvron et al. 2023): pre-norm blocks, rotary positions, grouped queries, SwiGLU.

Reads like the paper: what a layer computes and nothing else. Knows its tensors' names and its hyperparameters' keys in
a GGUF file; does not know how either is stored.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pagoda.backends.ops import KVGroup, KVLayer, Ops, RopeTable, Value, Weight
from pagoda.errors import ModelFileError, UnsupportedModel
from pagoda.models.metadata import Metadata


@dataclass(frozen=True, slots=True)
class LlamaConfig:
    """Hyperparameters, named as in the paper."""

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

    @classmethod
    def read(cls, metadata: Metadata, shapes: dict[str, tuple[int, ...]]) -> LlamaConfig:
        """From a file's metadata and the shapes of its tensors.

        Raises:
            ModelFileError: a key is missing or absurd, or keys do not go together.
            UnsupportedModel: it scales its rotary frequencies, or its values have another width than its keys.
        """
        scaling = metadata.text("rope.scaling.type", "none")
        if scaling != "none" or "rope_freqs.weight" in shapes:
            raise UnsupportedModel(
                f"{metadata.path}: rotary frequencies scaled as {scaling!r} are not known; only unscaled ones are"
            )
        width = metadata.count("embedding_length")
        heads = metadata.count("attention.head_count")
        head_dim = metadata.count("attention.key_length", default=width // heads)
        if (value_dim := metadata.count("attention.value_length", default=head_dim)) != head_dim:
            raise UnsupportedModel(
                f"{metadata.path}: keys of {head_dim} and values of {value_dim} elements are not known"
            )
        config = cls(
            layers=metadata.count("block_count"),
            width=width,
            heads=heads,
            kv_heads=metadata.count("attention.head_count_kv", default=heads),
            head_dim=head_dim,
            hidden=metadata.count("feed_forward_length"),
            vocabulary=shapes["token_embd.weight"][0] if "token_embd.weight" in shapes else 0,
            eps=metadata.number("attention.layer_norm_rms_epsilon"),
            rope_base=metadata.number("rope.freq_base", default=10000.0),
            rope_dims=metadata.count("rope.dimension_count", default=head_dim),
            context=metadata.count("context_length"),
            tied="output.weight" not in shapes,
        )
        config._check(metadata.path)
        return config

    def _check(self, path: str) -> None:
        if self.heads % self.kv_heads:
            raise ModelFileError(
                f"{path}: {self.heads} query heads cannot share {self.kv_heads} key-value heads evenly"
            )
        if self.rope_dims % 2 or self.rope_dims > self.head_dim:
            raise ModelFileError(
                f"{path}: it rotates {self.rope_dims} elements of a head, not an even number up to {self.head_dim}"
            )

    @property
    def groups(self) -> tuple[KVGroup, ...]:
        """All layers keep keys and values of all positions: one KV group."""
        return (KVGroup(self.layers, self.kv_heads, self.head_dim),)

    def tensors(self) -> dict[str, tuple[int, ...]]:
        """Every tensor the model needs, with its shape."""
        q, kv = self.heads * self.head_dim, self.kv_heads * self.head_dim
        needed = {"token_embd.weight": (self.vocabulary, self.width), "output_norm.weight": (self.width,)}
        if not self.tied:
            needed["output.weight"] = (self.vocabulary, self.width)
        for i in range(self.layers):
            needed |= {
                f"blk.{i}.attn_norm.weight": (self.width,),
                f"blk.{i}.attn_q.weight": (q, self.width),
                f"blk.{i}.attn_k.weight": (kv, self.width),
                f"blk.{i}.attn_v.weight": (kv, self.width),
                f"blk.{i}.attn_output.weight": (self.width, q),
                f"blk.{i}.ffn_norm.weight": (self.width,),
                f"blk.{i}.ffn_gate.weight": (self.hidden, self.width),
                f"blk.{i}.ffn_up.weight": (self.hidden, self.width),
                f"blk.{i}.ffn_down.weight": (self.width, self.hidden),
            }
        return needed


class Llama:
    """A Llama with its weights.

    Args:
        config: the hyperparameters.
        weight: a tensor's name -> the backend's weight.
        table: rotary angles for at least as many positions as will be used. GGUF files of this family keep a pair's two
            elements side by side, so the table is of adjacent pairs.
    """

    def __init__(self, config: LlamaConfig, weight: Callable[[str], Weight], table: RopeTable) -> None:
        self.config = config
        self.layers = config.layers
        self.groups = config.groups
        self.vocabulary = config.vocabulary
        self._weight = weight
        self._table = table

    def enter(self, ops: Ops) -> Value:
        """Token ids to the first hidden state."""
        return ops.embed(self._weight("token_embd.weight"))

    def layer(self, ops: Ops, i: int, x: Value) -> Value:
        """x + attention(norm(x)), then x + feed_forward(norm(x))."""
        c = self.config

        def w(name: str) -> Weight:
            return self._weight(f"blk.{i}.{name}.weight")

        h = ops.norm(x, w("attn_norm"), c.eps)
        q, k, v = ops.linear(h, (w("attn_q"), w("attn_k"), w("attn_v")), f"layers.{i}.qkv")
        q, k = ops.rope(q, k, c.head_dim, self._table)
        h = ops.attend(q, k, v, KVLayer(0, i, c.kv_heads, c.head_dim, c.head_dim**-0.5))
        x = ops.add(x, ops.linear(h, w("attn_output"), f"layers.{i}.o"))

        h = ops.norm(x, w("ffn_norm"), c.eps)
        gate, up = ops.linear(h, (w("ffn_gate"), w("ffn_up")), f"layers.{i}.gate_up")
        return ops.add(x, ops.linear(ops.act(gate, up, "silu"), w("ffn_down"), f"layers.{i}.down"))

    def leave(self, ops: Ops, x: Value) -> Value:
        """Hidden state to the logits of the sampled rows."""
        c = self.config
        x = ops.norm(ops.pick(x), self._weight("output_norm.weight"), c.eps)
        return ops.linear(x, self._weight("token_embd.weight" if c.tied else "output.weight"), "head")
