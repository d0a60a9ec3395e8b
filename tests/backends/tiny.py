"""A whole model of every verb, small and of odd shape: what a llama's segments record, in one program."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from pagoda.backends.ops import KVGroup, KVLayer

from .cases import Case, make_step, make_table
from .formats import random_tensor
from .verbs import rope_table

WIDTH, HIDDEN, VOCABULARY, LAYERS = 96, 160, 97, 3
HEADS, GROUPS, HEAD_DIM = 6, 2, 32
FORMATS = ("q4_1", "q4_0", "q8_0", "f16")
"""Of one layer's matrices in turn: every layer mixes them."""


def tiny(
    spans: Sequence[Sequence[tuple[int, int]]],
    sampled: Sequence[Sequence[int]],
    page_size: int = 16,
    kv_format: str = "f16",
    seed: int = 0,
    window: int | None = None,
) -> Case:
    """The model over one step for each of `spans`, a list of (start, end) per sequence. With a window, every other
    layer has it, and a soft cap."""
    rng = np.random.default_rng(seed)
    q, kv = HEADS * HEAD_DIM, GROUPS * HEAD_DIM
    shapes = [(q, WIDTH), (kv, WIDTH), (kv, WIDTH), (WIDTH, q), (HIDDEN, WIDTH), (HIDDEN, WIDTH), (WIDTH, HIDDEN)]
    tensors = [random_tensor(rng, "q8_0", (VOCABULARY, WIDTH), 1.0), random_tensor(rng, "f32", (WIDTH,))]
    for layer in range(LAYERS):
        tensors += [random_tensor(rng, "f32", (WIDTH,)), random_tensor(rng, "f32", (WIDTH,))]
        for i, (n, k) in enumerate(shapes):
            tensors.append(random_tensor(rng, FORMATS[(layer + i) % len(FORMATS)], (n, k), k**-0.5))
    table = rope_table(600, HEAD_DIM, adjacent=False)
    per_layer = 2 + len(shapes)

    def build(ops: Any, w: list[Any]) -> None:
        x = ops.embed(w[0])
        for layer in range(LAYERS):
            first, second, wq, wk, wv, wo, wgate, wup, wdown = w[2 + layer * per_layer :][:per_layer]
            q, k, v = ops.linear(ops.norm(x, first, 1e-5), (wq, wk, wv), f"layers.{layer}.qkv")
            q, k = ops.rope(q, k, HEAD_DIM, table)
            own = (window, 5.0) if window and layer % 2 else (None, None)
            y = ops.attend(q, k, v, KVLayer(0, layer, GROUPS, HEAD_DIM, HEAD_DIM**-0.5, *own))
            x = ops.add(x, ops.linear(y, wo, f"layers.{layer}.o"))
            gate, up = ops.linear(ops.norm(x, second, 1e-5), (wgate, wup))
            x = ops.add(x, ops.linear(ops.act(gate, up, "silu"), wdown))
        ops.output("R.hidden", x)
        ops.output("S.logits", ops.linear(ops.norm(ops.pick(x), w[1], 1e-5), w[0]))

    ids = [rng.integers(0, VOCABULARY, sum(b - a for a, b in step)).astype(np.int32) for step in spans]
    # Drawn last, so that nothing else depends on the page size.
    pages = make_table(rng, [max(step[s][1] for step in spans) for s in range(len(spans[0]))], page_size)
    return Case(
        f"tiny-p{page_size}-{kv_format}-{len(spans)}-{seed}{f'-w{window}' if window else ''}",
        build,
        tuple(make_step(s, (pages,), w, i) for s, w, i in zip(spans, sampled, ids, strict=True)),
        tuple(tensors),
        (KVGroup(LAYERS, GROUPS, HEAD_DIM),),
        int((pages != 2**31 - 1).sum()) + 1,
        page_size,
        kv_format,
    )


def tiny_prompts(page_size: int = 16, kv_format: str = "f16", seed: int = 0) -> Case:
    """One step: prompts of several lengths, some rows of them sampled."""
    return tiny([[(0, 17), (0, 1), (0, 33), (0, 19)]], [[0, 16, 17, 50, 69]], page_size, kv_format, seed)


def tiny_mixed(page_size: int = 16, kv_format: str = "f16", seed: int = 1, window: int | None = None) -> Case:
    """Three steps: prompts, then the rest of one beside single tokens, then single tokens."""
    return tiny(
        [[(0, 8), (0, 255), (0, 15)], [(8, 24), (255, 256), (15, 16)], [(24, 25), (256, 257), (16, 17)]],
        [[262, 277], [15, 16, 17], [0, 1, 2]],
        page_size,
        kv_format,
        seed,
        window,
    )
