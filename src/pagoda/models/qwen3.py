"""Qwen3 (Yang et al. 2025): a Llama whose queries and keys are normed, each head alone, before they are rotated."""

from __future__ import annotations

from dataclasses import dataclass

from pagoda.backends.ops import Ops, Value
from pagoda.models.config import Config, Shapes
from pagoda.models.decoder import Decoder
from pagoda.models.metadata import Metadata


@dataclass(frozen=True, slots=True)
class Qwen3Config(Config):
    """With two norms for heads in a layer."""

    def block(self) -> dict[str, tuple[int, ...]]:
        """Tensors of a layer."""
        return Config.block(self) | {"attn_q_norm.weight": (self.head_dim,), "attn_k_norm.weight": (self.head_dim,)}


class Qwen3(Decoder):
    """Rotary pairs are half a head apart."""

    @classmethod
    def read(cls, metadata: Metadata, shapes: Shapes) -> Config:
        """Hyperparameters."""
        return Qwen3Config.read(metadata, shapes, adjacent=False)

    def layer(self, ops: Ops, i: int, x: Value) -> Value:
        """x + attention(norm(x)), then x + feed_forward(norm(x))."""
        c, w = self.config, self.weights_of(i)
        h = ops.norm(x, w("attn_norm"), c.eps)
        q, k, v = ops.linear(h, (w("attn_q"), w("attn_k"), w("attn_v")), f"layers.{i}.qkv")
        q = ops.norm(q, w("attn_q_norm"), c.eps, c.heads)
        k = ops.norm(k, w("attn_k_norm"), c.eps, c.kv_heads)
        q, k = ops.rope(q, k, c.head_dim, self._tables[0])
        h = ops.attend(q, k, v, self.place(i))
        x = ops.add(x, ops.linear(h, w("attn_output"), f"layers.{i}.o"))
        return ops.add(x, self.feed_forward(ops, i, ops.norm(x, w("ffn_norm"), c.eps)))
