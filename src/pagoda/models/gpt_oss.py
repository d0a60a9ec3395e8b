"""gpt-oss (OpenAI 2025): a mixture with biases everywhere, attention sinks, and a window on every other layer.

Experts are gated by a clamped SwiGLU. Rotary frequencies are scaled by YaRN, whose borders are not rounded here.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from pagoda.backends.ops import Experts, Ops, Value
from pagoda.models.config import Config, Shapes
from pagoda.models.metadata import Metadata
from pagoda.models.mixtral import KINDS, Mixture, MixtureConfig


@dataclass(frozen=True, slots=True)
class GptOssConfig(MixtureConfig):
    """With biases and sinks."""

    def block(self) -> dict[str, tuple[int, ...]]:
        """Tensors of a layer."""
        block = MixtureConfig.block(self)
        block["post_attention_norm.weight"] = block.pop("ffn_norm.weight")
        widths = {"attn_q": self.queries, "attn_k": self.keys, "attn_v": self.keys, "attn_output": self.width}
        block |= {f"{name}.bias": (n,) for name, n in widths.items()}
        block |= {"attn_sinks.weight": (self.heads,), "ffn_gate_inp.bias": (self.experts,)}
        rows = {"ffn_gate": self.hidden, "ffn_up": self.hidden, "ffn_down": self.width}
        return block | {f"{kind}_exps.bias": (self.experts, n) for kind, n in rows.items()}


class GptOss(Mixture):
    """Rotary pairs are half a head apart."""

    @classmethod
    def read(cls, metadata: Metadata, shapes: Shapes) -> MixtureConfig:
        """Hyperparameters. Layers 0, 2, 4 ... see a window."""
        plain = Config.read(metadata, shapes, adjacent=False)
        window = metadata.count("attention.sliding_window", default=128)
        return GptOssConfig.read(
            metadata,
            shapes,
            adjacent=False,
            experts=metadata.count("expert_count"),
            chosen=metadata.count("expert_used_count"),
            hidden=metadata.count("expert_feed_forward_length", default=plain.hidden),
            scaling=replace(plain.scaling, whole=metadata.truth("rope.scaling.yarn_truncate", default=False)),
            windows=tuple(None if i % 2 else window for i in range(plain.layers)),
        )

    def layer(self, ops: Ops, i: int, x: Value) -> Value:
        """x + attention(norm(x)), then x + experts(norm(x))."""
        c, w = self.config, self.weights_of(i)
        h = ops.norm(x, w("attn_norm"), c.eps)
        names = ("attn_q", "attn_k", "attn_v")
        q, k, v = ops.linear(h, [w(n) for n in names], f"layers.{i}.qkv", [w(f"{n}.bias") for n in names])
        q, k = ops.rope(q, k, c.head_dim, self._tables[0])
        h = ops.attend(q, k, v, self.place(i, sinks=w("attn_sinks")))
        x = ops.add(x, ops.linear(h, w("attn_output"), f"layers.{i}.o", w("attn_output.bias")))
        return ops.add(x, self.feed_forward(ops, i, ops.norm(x, w("post_attention_norm"), c.eps)))

    def feed_forward(self, ops: Ops, i: int, h: Value) -> Value:
        """A few experts, each with biases."""
        c, w = self.config, self.weights_of(i)
        gate, up, down = ([w(f"{kind}.{e}.weight") for e in range(c.experts)] for kind in KINDS)
        biases = (w("ffn_gate_exps.bias"), w("ffn_up_exps.bias"), w("ffn_down_exps.bias"))
        scores = ops.linear(h, w("ffn_gate_inp"), f"layers.{i}.router", w("ffn_gate_inp.bias"))
        return ops.moe(h, scores, Experts(gate, up, down, biases), c.chosen, "swiglu_clamped", "chosen")
