"""SmolLM3 (Bakouch et al. 2025): a Llama without rotation on every fourth layer (NoPE; Kazemnejad et al. 2023)."""

from __future__ import annotations

from pagoda.backends.ops import Ops, Value
from pagoda.models.config import Config, Shapes
from pagoda.models.decoder import Decoder
from pagoda.models.metadata import Metadata

UNROTATED = 4
"""Layers 3, 7, 11 ... know no positions."""


class SmolLM3(Decoder):
    """GGUF files of this family keep a rotary pair's two elements side by side."""

    @classmethod
    def read(cls, metadata: Metadata, shapes: Shapes) -> Config:
        """Hyperparameters."""
        return Config.read(metadata, shapes, adjacent=True)

    def layer(self, ops: Ops, i: int, x: Value) -> Value:
        """x + attention(norm(x)), then x + feed_forward(norm(x))."""
        c, w = self.config, self.weights_of(i)
        h = ops.norm(x, w("attn_norm"), c.eps)
        q, k, v = ops.linear(h, (w("attn_q"), w("attn_k"), w("attn_v")), f"layers.{i}.qkv")
        if (i + 1) % UNROTATED:
            q, k = ops.rope(q, k, c.head_dim, self._tables[0])
        h = ops.attend(q, k, v, self.place(i))
        x = ops.add(x, ops.linear(h, w("attn_output"), f"layers.{i}.o"))
        return ops.add(x, self.feed_forward(ops, i, ops.norm(x, w("ffn_norm"), c.eps)))
