"""The Llama family (Touvron et al. 2023): pre-norm blocks, rotary positions, grouped queries, SwiGLU.

Llama 2, 3 and 3.x (rotary factors in a tensor), Mistral (Jiang et al. 2023; a window, if the file names one) and
SmolLM2 are of it. Reads like the paper: what a layer computes and nothing else. Knows its tensors' names and its
hyperparameters' keys in a GGUF file; does not know how either is stored.
"""

from __future__ import annotations

from pagoda.backends.ops import Ops, Value
from pagoda.models.config import Config, Shapes
from pagoda.models.decoder import Decoder
from pagoda.models.metadata import Metadata


class Llama(Decoder):
    """GGUF files of this family keep a rotary pair's two elements side by side."""

    @classmethod
    def read(cls, metadata: Metadata, shapes: Shapes) -> Config:
        """Hyperparameters."""
        window = metadata.count("attention.sliding_window") if metadata.has("attention.sliding_window") else None
        return Config.read(metadata, shapes, adjacent=True, window=window)

    def layer(self, ops: Ops, i: int, x: Value) -> Value:
        """x + attention(norm(x)), then x + feed_forward(norm(x))."""
        c, w = self.config, self.weights_of(i)
        h = ops.norm(x, w("attn_norm"), c.eps)
        q, k, v = ops.linear(h, (w("attn_q"), w("attn_k"), w("attn_v")), f"layers.{i}.qkv")
        q, k = ops.rope(q, k, c.head_dim, self._tables[0])
        h = ops.attend(q, k, v, self.place(i))
        x = ops.add(x, ops.linear(h, w("attn_output"), f"layers.{i}.o"))
        return ops.add(x, self.feed_forward(ops, i, ops.norm(x, w("ffn_norm"), c.eps)))
