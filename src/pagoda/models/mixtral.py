"""Mixtures of experts: Mixtral (Jiang et al. 2024), Qwen3-MoE (Yang et al. 2025), OLMoE (Muennighoff et al. 2024).

Llamas whose feed-forward is a choice of a few experts out of many, by a router's scores. Qwen3-MoE norms each head of
queries and keys, OLMoE all heads of a row together, and weighs its experts by a softmax over all of them. A file keeps
all experts' matrices of a kind in one tensor, or each in one of its own.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from pagoda.backends.ops import Experts, Ops, Routing, Value
from pagoda.errors import ModelFileError
from pagoda.models.config import Config, Shapes
from pagoda.models.decoder import Decoder
from pagoda.models.metadata import Metadata

KINDS = ("ffn_gate", "ffn_up", "ffn_down")


@dataclass(frozen=True, slots=True)
class MixtureConfig(Config):
    """With experts; `hidden` is the width of each."""

    experts: int = 1
    chosen: int = 1
    separate: bool = False
    """Whether each expert's matrices are tensors of their own."""
    routing: Routing = "chosen"
    norm_heads: str = ""
    """What of queries and keys is normed: nothing, `each` head, or `all` of a row."""

    def check(self, path: str) -> None:
        """Raise `ModelFileError` if numbers do not go together."""
        Config.check(self, path)
        if self.chosen > self.experts:
            raise ModelFileError(f"{path}: {self.chosen} of {self.experts} experts cannot be chosen")

    def block(self) -> dict[str, tuple[int, ...]]:
        """Tensors of a layer."""
        block = Config.block(self)
        matrices = {kind: block.pop(f"{kind}.weight") for kind in KINDS}
        block["ffn_gate_inp.weight"] = (self.experts, self.width)
        for kind, shape in matrices.items():
            if self.separate:
                block |= {f"{kind}.{e}.weight": shape for e in range(self.experts)}
            else:
                block[f"{kind}_exps.weight"] = (self.experts, *shape)
        if self.norm_heads:
            q, k = (self.head_dim, self.head_dim) if self.norm_heads == "each" else (self.queries, self.keys)
            block |= {"attn_q_norm.weight": (q,), "attn_k_norm.weight": (k,)}
        return block

    def parts(self) -> dict[str, dict[str, int]]:
        """Each expert's matrix."""
        if self.separate:
            return {}
        rows = {"ffn_gate": self.hidden, "ffn_up": self.hidden, "ffn_down": self.width}
        return {
            f"blk.{i}.{kind}_exps.weight": {f"blk.{i}.{kind}.{e}.weight": n for e in range(self.experts)}
            for i in range(self.layers)
            for kind, n in rows.items()
        }


class Mixture(Decoder):
    """Rotary pairs lie side by side in Mixtral's files, half a head apart in the others'."""

    config: MixtureConfig

    @classmethod
    def read(cls, metadata: Metadata, shapes: Shapes) -> MixtureConfig:
        """Hyperparameters."""
        name = metadata.architecture
        plain = MixtureConfig.read(metadata, shapes, adjacent=name == "llama")
        config = replace(
            plain,
            experts=metadata.count("expert_count"),
            chosen=metadata.count("expert_used_count"),
            hidden=metadata.count("expert_feed_forward_length", default=plain.hidden),
            separate="blk.0.ffn_gate.0.weight" in shapes,
            routing="all" if name == "olmoe" else "chosen",
            norm_heads={"qwen3moe": "each", "olmoe": "all"}.get(name, ""),
        )
        config.check(metadata.path)
        return config

    def layer(self, ops: Ops, i: int, x: Value) -> Value:
        """x + attention(norm(x)), then x + experts(norm(x))."""
        c, w = self.config, self.weights_of(i)
        h = ops.norm(x, w("attn_norm"), c.eps)
        q, k, v = ops.linear(h, (w("attn_q"), w("attn_k"), w("attn_v")), f"layers.{i}.qkv")
        if c.norm_heads:
            each = c.norm_heads == "each"
            q = ops.norm(q, w("attn_q_norm"), c.eps, c.heads if each else 1)
            k = ops.norm(k, w("attn_k_norm"), c.eps, c.kv_heads if each else 1)
        q, k = ops.rope(q, k, c.head_dim, self._tables[0])
        h = ops.attend(q, k, v, self.place(i))
        x = ops.add(x, ops.linear(h, w("attn_output"), f"layers.{i}.o"))
        return ops.add(x, self.feed_forward(ops, i, ops.norm(x, w("ffn_norm"), c.eps)))

    def feed_forward(self, ops: Ops, i: int, h: Value) -> Value:
        """A few experts, each a SwiGLU."""
        c, w = self.config, self.weights_of(i)
        gate, up, down = ([w(f"{kind}.{e}.weight") for e in range(c.experts)] for kind in KINDS)
        scores = ops.linear(h, w("ffn_gate_inp"), f"layers.{i}.router")
        return ops.moe(h, scores, Experts(gate, up, down), c.chosen, "silu", c.routing)
