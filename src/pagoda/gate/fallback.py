"""Where a format fails as a whole: the fewest layers that, in the finer format, make it pass.

Each layer is tried in the coarse format by itself, all others in the finer one: how much further that takes the outputs
is how much the layer needs the finer format. Divergences of layers nearly add up, so their sum says how many to take.
"""

from __future__ import annotations

from collections.abc import Sequence

from pagoda.config import FINER
from pagoda.gate.bench import Bench
from pagoda.gate.judge import DIVERGENCE
from pagoda.gate.verdict import Verdict

MARGIN = 0.6
"""Of the limit: what the layers that stay coarse may add up to at the first try."""
TRIES = 2


def fall_back(bench: Bench, failed: Verdict) -> Verdict | None:
    """A mix of a failed format with the next finer one, in half of the layers at most: the last one tried.

    Either the weights' format is mixed or, if they are the file's own, the KV format. None: there is no mix.
    """
    weights = failed.quantize is not None
    coarse = failed.quantize or failed.kv_format
    if coarse not in FINER:
        return None

    def mixed(layers: Sequence[int]) -> tuple[str | None, str]:
        text = f"{coarse}:{','.join(map(str, sorted(layers)))}"
        return (text, failed.kv_format) if weights else (None, text)

    if weights:
        bench.subject(FINER[coarse], failed.kv_format)  # packed once, for all mixes
    layers = range(bench.reference.net.model.layers)
    finer, *each = bench.divergences(
        [bench.subject(*mixed(layers)), *(bench.subject(*mixed([i for i in layers if i != at])) for at in layers)]
    )
    alone = [divergence - finer for divergence in each]
    ranked = sorted(layers, key=lambda i: -alone[i])
    most = len(layers) // 2
    count = min(enough([alone[i] for i in ranked], MARGIN * DIVERGENCE), most)
    if not count:
        return None
    for left in reversed(range(TRIES)):
        _, (verdict,) = bench.judge([bench.subject(*mixed(ranked[:count]))])
        if verdict.passed or count == most or not left:
            break
        count = min(count + max(1, count // 2), most)
    return verdict


def enough(falling: Sequence[float], limit: float) -> int:
    """How many of the first to leave out so that the rest adds up to no more than a limit; at least one."""
    return next(n for n in range(1, len(falling) + 1) if sum(falling[n:]) <= limit)
