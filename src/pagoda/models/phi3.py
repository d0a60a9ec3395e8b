"""Phi-3 and Phi-4 (Abdin et al. 2024): a Llama whose q, k, v and whose gate and up are one matrix each in the file. It
may rotate only a part of each head, with one set of rotary factors for short contexts and one for long ones.

The matrices are cut apart as they are packed: rows are output features, so no number changes.
"""

from __future__ import annotations

from dataclasses import dataclass

from pagoda.models.config import Config, Shapes
from pagoda.models.llama import Llama
from pagoda.models.metadata import Metadata


@dataclass(frozen=True, slots=True)
class Phi3Config(Config):
    """With fused matrices."""

    def block(self) -> dict[str, tuple[int, ...]]:
        """Tensors of a layer."""
        block = Config.block(self)
        for name in ("attn_q", "attn_k", "attn_v", "ffn_gate"):
            del block[f"{name}.weight"]
        return block | {
            "attn_qkv.weight": (self.queries + 2 * self.keys, self.width),
            "ffn_up.weight": (2 * self.hidden, self.width),
        }

    def parts(self) -> dict[str, dict[str, int]]:
        """Queries, keys, values; gate, up."""
        cut = {}
        for i in range(self.layers):
            rows = {"attn_q": self.queries, "attn_k": self.keys, "attn_v": self.keys}
            cut[f"blk.{i}.attn_qkv.weight"] = {f"blk.{i}.{name}.weight": n for name, n in rows.items()}
            cut[f"blk.{i}.ffn_up.weight"] = {f"blk.{i}.{n}.weight": self.hidden for n in ("ffn_gate", "ffn_up")}
        return cut


class Phi3(Llama):
    """Rotary pairs are half of the rotated part apart."""

    @classmethod
    def read(cls, metadata: Metadata, shapes: Shapes) -> Config:
        """Hyperparameters."""
        window = metadata.count("attention.sliding_window") if metadata.has("attention.sliding_window") else None
        return Phi3Config.read(metadata, shapes, adjacent=False, window=window)
