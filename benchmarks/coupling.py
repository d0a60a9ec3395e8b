"""How often a model's draft can be right at most, and how often it is right with the noise of its place.

For any way to draw a draft from q and a token from p together, they are equal with a chance of at most sum(min(p, q)):
the maximal coupling. With one noise for both, which is what makes outputs independent of drafts, it is a little less.
Both are averages over the positions of a text.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from pagoda.backends.cpu import CpuBackend, rope_table
from pagoda.backends.ops import Model, Ops, Step
from pagoda.catalog import open_model
from pagoda.models import build, read_config
from pagoda.runner.guessing import first_layers
from pagoda.runner.runner import whole_model

Logits = npt.NDArray[np.float64]
DRAWS = 20


def logits_of(backend: CpuBackend, model: Model, build_program: Callable[[Ops], None], ids: Sequence[int]) -> Logits:
    """Of every position of a text, [positions, vocabulary]."""
    rows = np.arange(len(ids), dtype=np.int32)
    pages = np.arange(-(-len(ids) // 16), dtype=np.int32)[None]
    tables = tuple(pages for _ in model.groups)
    store = backend.kv_store(model.groups, [pages.size] * len(model.groups), 16, "f16")
    step = Step(np.array(ids, np.int32), rows, rows * 0, tables, rows)
    return backend.program(build_program).run(store, step)["logits"].astype(np.float64)


def loaded(backend: CpuBackend, name: str) -> Model:
    """A model by name or path."""
    with open_model(name) as source:
        return build(source, read_config(source), backend.weights, rope_table, 1024)


def both(model: str, speculate: str, ids: Sequence[int]) -> tuple[Logits, Logits]:
    """Logits of a model, and of the drafter that `self:K` or `draft:MODEL` means."""
    backend = CpuBackend()
    target = loaded(backend, model)
    kind, _, of = speculate.partition(":")
    drafter = target if kind == "self" else loaded(backend, of)
    layers = int(of) if kind == "self" else drafter.layers
    return (
        logits_of(backend, target, lambda ops: whole_model(target, ops), ids),
        logits_of(backend, drafter, lambda ops: first_layers(drafter, layers, ops), ids),
    )


def coupling(target: Logits, draft: Logits, temperature: float) -> dict[str, float]:
    """Chances that a draft is right, at a temperature; at 0 there is but one way to draw."""
    if temperature == 0:
        agree = float((target.argmax(-1) == draft.argmax(-1)).mean())
        return {"maximal_coupling": agree, "shared_noise": agree}
    scaled = [logits / temperature for logits in (target, draft)]
    p, q = (np.exp(x - x.max(-1, keepdims=True)) for x in scaled)
    p, q = (x / x.sum(-1, keepdims=True) for x in (p, q))
    rng, same = np.random.default_rng(0), []
    for _ in range(DRAWS):
        noise = rng.gumbel(size=target.shape)
        same.append(((scaled[0] + noise).argmax(-1) == (scaled[1] + noise).argmax(-1)).mean())
    return {"maximal_coupling": float(np.minimum(p, q).sum(-1).mean()), "shared_noise": float(np.mean(same))}
