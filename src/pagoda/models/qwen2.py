"""Qwen2 and Qwen2.5 (Yang et al. 2024): a Llama with biases on queries, keys and values."""

from __future__ import annotations

from dataclasses import dataclass

from pagoda.backends.ops import Ops, Value
from pagoda.models.config import Config, Shapes
from pagoda.models.decoder import Decoder
from pagoda.models.metadata import Metadata


@dataclass(frozen=True, slots=True)
class Qwen2Config(Config):
    """With three biases in a layer."""

    def block(self) -> dict[str, tuple[int, ...]]:
        """Tensors of a layer."""
        biases = {"attn_q.bias": (self.queries,), "attn_k.bias": (self.keys,), "attn_v.bias": (self.keys,)}
        return Config.block(self) | biases


class Qwen2(Decoder):
    """Rotary pairs are half a head apart."""

    @classmethod
    def read(cls, metadata: Metadata, shapes: Shapes) -> Config:
        """Hyperparameters."""
        return Qwen2Config.read(metadata, shapes, adjacent=False)

    def layer(self, ops: Ops, i: int, x: Value) -> Value:
        """x + attention(norm(x)), then x + feed_forward(norm(x))."""
        c, w = self.config, self.weights_of(i)
        h = ops.norm(x, w("attn_norm"), c.eps)
        q, k, v = ops.linear(
            h,
            (w("attn_q"), w("attn_k"), w("attn_v")),
            f"layers.{i}.qkv",
            (w("attn_q.bias"), w("attn_k.bias"), w("attn_v.bias")),
        )
        q, k = ops.rope(q, k, c.head_dim, self._tables[0])
        h = ops.attend(q, k, v, self.place(i))
        x = ops.add(x, ops.linear(h, w("attn_output"), f"layers.{i}.o"))
        return ops.add(x, self.feed_forward(ops, i, ops.norm(x, w("ffn_norm"), c.eps)))
