"""Gemma 2 (2024) and Gemma 3 (2025): norms before and after attention and feed-forward, GeGLU, a scaled embedding, and
layers that see only a window.

Gemma 2 caps scores and logits softly, and every other layer sees a window. Gemma 3 norms each head of queries and keys
instead; five of six layers see a window, and rotate with a base of their own. Files store w + 1 for the norms' (1 + w).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pagoda.backends.ops import Ops, RopeTable, Value, Weight
from pagoda.models.config import Config, Factors, Shapes
from pagoda.models.decoder import Decoder
from pagoda.models.metadata import Metadata
from pagoda.models.rotary import Rotation, frequencies


@dataclass(frozen=True, slots=True)
class GemmaConfig(Config):
    """With what Gemmas have besides."""

    scale: float = 1.0
    """Of attention scores."""
    head_norms: bool = False
    """Gemma 3: each head of queries and keys is normed."""
    local_base: float = 10000.0
    """Gemma 3: rotary base of layers with a window."""
    score_cap: float | None = None
    logit_cap: float | None = None

    def block(self) -> dict[str, tuple[int, ...]]:
        """Tensors of a layer."""
        block = Config.block(self) | {
            "post_attention_norm.weight": (self.width,),
            "post_ffw_norm.weight": (self.width,),
        }
        if self.head_norms:
            block |= {"attn_q_norm.weight": (self.head_dim,), "attn_k_norm.weight": (self.head_dim,)}
        return block

    def rotations(self, factors: Factors, positions: int) -> tuple[Rotation, ...]:
        """For layers that see all, and for those with a window: these are never scaled."""
        (whole,) = Config.rotations(self, factors, positions)
        if not self.head_norms:
            return whole, whole
        return whole, Rotation(tuple(frequencies(self.local_base, self.rope_dims)), self.adjacent)

    @property
    def table_dims(self) -> tuple[int, ...]:
        """Of both tables."""
        return (self.rope_dims, self.rope_dims)


LARGEST = {"gemma2": 46, "gemma3": 62}
"""Layers of the 27B models, whose scores are scaled by (width / heads)^-0.5 instead of head_dim^-0.5."""
PERIOD = {"gemma2": 2, "gemma3": 6}
"""The last of so many layers sees everything."""


class Gemma(Decoder):
    """Rotary pairs are half a head apart."""

    config: GemmaConfig

    def __init__(self, config: GemmaConfig, weight: Callable[[str], Weight], tables: Sequence[RopeTable]) -> None:
        super().__init__(config, weight, tables)

    @classmethod
    def read(cls, metadata: Metadata, shapes: Shapes) -> GemmaConfig:
        """Hyperparameters."""
        name = "gemma3" if metadata.architecture == "gemma3" else "gemma2"
        third = name == "gemma3"
        plain = GemmaConfig.read(metadata, shapes, adjacent=False)
        large = plain.layers == LARGEST[name]
        usual = (plain.width / plain.heads if large else plain.head_dim) ** -0.5
        window = metadata.count("attention.sliding_window", default=1024 if third else 4096)
        pattern = metadata.flags("attention.sliding_window_pattern", plain.layers)
        local = pattern or tuple((i + 1) % PERIOD[name] > 0 for i in range(plain.layers))
        caps = {"attn_logit_softcapping": None if third else 50.0, "final_logit_softcapping": None if third else 30.0}
        score, logit = (
            metadata.number(key, default=cap) if metadata.has(key) or cap else None for key, cap in caps.items()
        )
        return GemmaConfig.read(
            metadata,
            shapes,
            adjacent=False,
            windows=tuple(window if each else None for each in local),
            scale=metadata.number("attention.scale", default=usual),
            head_norms=third,
            local_base=metadata.number("rope.freq_base_swa", default=10000.0),
            rope_base=metadata.number("rope.freq_base", default=1e6 if third else 1e4),
            score_cap=score,
            logit_cap=logit,
        )

    def enter(self, ops: Ops) -> Value:
        """Token ids to the first hidden state, times sqrt(width)."""
        return ops.scale(Decoder.enter(self, ops), self.config.width**0.5)

    def layer(self, ops: Ops, i: int, x: Value) -> Value:
        """x + norm(attention(norm(x))), then x + norm(feed_forward(norm(x)))."""
        c, w = self.config, self.weights_of(i)
        h = ops.norm(x, w("attn_norm"), c.eps)
        q, k, v = ops.linear(h, (w("attn_q"), w("attn_k"), w("attn_v")), f"layers.{i}.qkv")
        if c.head_norms:
            q = ops.norm(q, w("attn_q_norm"), c.eps, c.heads)
            k = ops.norm(k, w("attn_k_norm"), c.eps, c.kv_heads)
        q, k = ops.rope(q, k, c.head_dim, self._tables[c.windows[i] is not None])
        h = ops.attend(q, k, v, self.place(i, c.scale, c.score_cap))
        h = ops.linear(h, w("attn_output"), f"layers.{i}.o")
        x = ops.add(x, ops.norm(h, w("post_attention_norm"), c.eps))

        h = self.feed_forward(ops, i, ops.norm(x, w("ffn_norm"), c.eps))
        return ops.add(x, ops.norm(h, w("post_ffw_norm"), c.eps))

    def feed_forward(self, ops: Ops, i: int, h: Value) -> Value:
        """GeGLU (Shazeer 2020): down(gelu(gate(h)) * up(h))."""
        w = self.weights_of(i)
        gate, up = ops.linear(h, (w("ffn_gate"), w("ffn_up")), f"layers.{i}.gate_up")
        return ops.linear(ops.act(gate, up, "gelu_tanh"), w("ffn_down"), f"layers.{i}.down")

    def leave(self, ops: Ops, x: Value) -> Value:
        """Hidden state to the logits of the sampled rows."""
        logits = Decoder.leave(self, ops, x)
        return logits if self.config.logit_cap is None else ops.soft_cap(logits, self.config.logit_cap)
