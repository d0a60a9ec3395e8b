"""What all families have in common: embedding first, vocabulary projection last, weights by name, place in a cache."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

from pagoda.backends.ops import KVLayer, Ops, RopeTable, Value, Weight
from pagoda.models.config import Config, Shapes
from pagoda.models.metadata import Metadata


class Decoder(ABC):
    """A model with its weights. A family adds `layer`.

    Args:
        config: the hyperparameters.
        weight: a tensor's name -> the backend's weight.
        tables: rotary angles, one table for each of `config.rotations`, for all positions that will be used.
    """

    @classmethod
    @abstractmethod
    def read(cls, metadata: Metadata, shapes: Shapes) -> Config:
        """The family's hyperparameters, from a file's metadata and the shapes of its tensors.

        Raises:
            ModelFileError, UnsupportedModel: as `Config.read`.
        """

    def __init__(self, config: Config, weight: Callable[[str], Weight], tables: Sequence[RopeTable]) -> None:
        self.config = config
        self.layers = config.layers
        self.groups = config.groups
        self.vocabulary = config.vocabulary
        self._weight = weight
        self._tables = tables

    def enter(self, ops: Ops) -> Value:
        """Token ids to the first hidden state."""
        return ops.embed(self._weight("token_embd.weight"))

    @abstractmethod
    def layer(self, ops: Ops, i: int, x: Value) -> Value:
        """Layer i."""

    def leave(self, ops: Ops, x: Value) -> Value:
        """Hidden state to the logits of the sampled rows."""
        x = ops.norm(ops.pick(x), self._weight("output_norm.weight"), self.config.eps)
        return ops.linear(x, self._weight("token_embd.weight" if self.config.tied else "output.weight"), "head")

    def weights_of(self, i: int) -> Callable[[str], Weight]:
        """Name within layer i -> weight; `attn_q` means `attn_q.weight`."""
        return lambda name: self._weight(f"blk.{i}.{name}" if "." in name else f"blk.{i}.{name}.weight")

    def place(self, i: int, scale: float | None = None, soft_cap: float | None = None, sinks: Weight = None) -> KVLayer:
        """Where layer i keeps keys and values, and how it scores; `scale` is head_dim^-0.5 if not said."""
        c = self.config
        scale = c.head_dim**-0.5 if scale is None else scale
        return KVLayer(*c.place(i), c.kv_heads, c.head_dim, scale, c.windows[i], soft_cap, sinks)

    def feed_forward(self, ops: Ops, i: int, h: Value) -> Value:
        """SwiGLU (Shazeer 2020): down(silu(gate(h)) * up(h))."""
        w = self.weights_of(i)
        gate, up = ops.linear(h, (w("ffn_gate"), w("ffn_up")), f"layers.{i}.gate_up")
        return ops.linear(ops.act(gate, up, "silu"), w("ffn_down"), f"layers.{i}.down")
