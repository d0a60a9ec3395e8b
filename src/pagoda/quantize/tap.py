"""Running one layer of a model at a time, and seeing what its matrices read.

A tap is a backend's `Ops` that hands out the input of every `linear` besides; so any family and any backend can be
tapped. Knows the verbs and the segments of a model; nothing of what is done with the inputs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from pagoda.backends.ops import Backend, Floats, KVGroup, KVLayer, Ops, Step, StoredTensor, Value, Weight
from pagoda.catalog import AnyModel
from pagoda.models import RopeMaker, assemble, cut
from pagoda.models.config import Config

PAGE = 16
_INPUT = "input of "


class Tap:
    """The verbs of `inner`, but that inputs of matrices are handed out and all layers keep their keys in one place."""

    def __init__(self, inner: Ops, sites: dict[str, tuple[str, ...]]) -> None:
        self._inner = inner
        self._sites = sites

    def __getattr__(self, verb: str) -> Any:
        return getattr(self._inner, verb)

    def linear(self, x: Value, weights: Weight | Sequence[Weight], site: str = "", bias: Any = None) -> Any:
        """The product; x is handed out under the site's name."""
        several = weights if isinstance(weights, Sequence) else (weights,)
        self._sites[site] = tuple(w.name for w in several)
        self._inner.output(_INPUT + site, x)
        return self._inner.linear(x, weights, site, bias)

    def attend(self, q: Value, k: Value, v: Value, kv: KVLayer) -> Value:
        """Attention; there is room for one layer only."""
        return self._inner.attend(q, k, v, replace(kv, group=0, layer=0))


class Layers:
    """A model whose layers are run one by one, with weights that are handed in.

    Args:
        source: the model, for its rotary factors and its family.
        config: its hyperparameters.
        backend: what computes.
        rope: the backend's `rope_table`.
        length: tokens of the longest sequence.
    """

    def __init__(self, source: AnyModel, config: Config, backend: Backend, rope: RopeMaker, length: int) -> None:
        self._config, self._backend = config, backend
        self._weights: dict[str, Weight] = {}
        self._model = assemble(source, config, self._weights.__getitem__, rope, length)
        pages = -(-length // PAGE)
        group = KVGroup(1, config.kv_heads, config.head_dim)
        self._kv = backend.kv_store([group], [pages], PAGE, "f32")
        self._table = np.arange(pages, dtype=np.int32)[None]

    def _pack(self, tensors: Sequence[StoredTensor]) -> None:
        pieces = [piece for tensor in tensors for piece in cut(tensor, self._config.parts().get(tensor.name))]
        self._weights.clear()
        self._weights |= {p.name: w for p, w in zip(pieces, self._backend.weights(pieces), strict=True)}

    def _step(self, ids: npt.ArrayLike, inputs: dict[str, Floats]) -> Step:
        rows = np.array(ids, np.int32)
        count = len(rows)
        return Step(
            ids=rows,
            positions=np.arange(count, dtype=np.int32),
            sequences=np.zeros(count, np.int32),
            tables=(self._table,),
            sampled=np.zeros(0, np.int32),
            inputs=inputs,
        )

    def enter(self, embedding: StoredTensor, ids: Sequence[int]) -> Floats:
        """Token ids to the first hidden state, [tokens, width]; of the embedding no more than their rows is packed."""
        distinct, places = np.unique(np.array(ids), return_inverse=True)
        self._pack([rows_of(embedding, distinct)])
        program = self._backend.program(lambda ops: ops.output("hidden", self._model.enter(ops)))
        found = np.concatenate(
            [
                program.run(self._kv, self._step(places[i : i + self.longest], {}))["hidden"]
                for i in range(0, len(places), self.longest)
            ]
        )
        self._weights.clear()
        return found

    @property
    def longest(self) -> int:
        """Tokens of the longest sequence that fits."""
        return self._table.size * PAGE

    def run(
        self, i: int, tensors: Sequence[StoredTensor], hidden: Sequence[Floats], see: Any = None
    ) -> tuple[list[Floats], dict[str, tuple[str, ...]]]:
        """Layer i on several sequences.

        Args:
            i: its number.
            tensors: the layer's, as a file would hold them.
            hidden: [tokens, width] of each sequence.
            see: is called with a site and what the matrices there read, [tokens, inputs], for each sequence.

        Returns:
            The hidden states behind it, and the names of each site's matrices.
        """
        self._pack(tensors)
        sites: dict[str, tuple[str, ...]] = {}

        def record(ops: Ops) -> None:
            tapped = cast(Ops, Tap(ops, sites)) if see else cast(Ops, Tap(_Silent(ops), {}))
            ops.output("hidden", self._model.layer(tapped, i, ops.input("hidden", self._config.width)))

        program = self._backend.program(record)
        after = []
        for x in hidden:
            found = program.run(self._kv, self._step(np.zeros(len(x)), {"hidden": x}))
            after.append(found.pop("hidden"))
            for name, value in found.items():
                see(name.removeprefix(_INPUT), value)
        self._weights.clear()
        return after, sites


class _Silent:
    """Verbs that hand nothing out."""

    def __init__(self, inner: Ops) -> None:
        self._inner = inner

    def __getattr__(self, verb: str) -> Any:
        return getattr(self._inner, verb)

    def output(self, name: str, x: Value) -> None:
        """Nothing."""


def rows_of(tensor: StoredTensor, rows: Any) -> StoredTensor:
    """Some rows of a matrix, read one by one."""
    width = tensor.shape[-1]
    size = width // tensor.format.block * tensor.format.block_bytes
    stored = tensor.stored
    raw = (
        stored.reshape(-1, size)[rows]
        if isinstance(stored, np.ndarray)
        else np.stack([stored.part(int(row) * size, size).read() for row in rows])
    )
    return StoredTensor(tensor.name, (len(rows), width), tensor.format, raw.reshape(-1))


def together(tensors: Mapping[str, StoredTensor], names: Sequence[str]) -> list[StoredTensor]:
    """Some tensors, in order."""
    return [tensors[name] for name in names]
