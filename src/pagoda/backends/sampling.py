"""How a token is chosen from a row of logits: the reference that the native sampler agrees with, token for token.

Knows one row of logits and its `Draw`; knows nothing of batches, programs or text. Pure functions: a token depends on
its logits, its parameters, its history (for the penalties), its seed, choice and position, and on nothing else.

The rule, for one row of f32 logits l[V]. Parameters are rounded to f32 first. Steps 2 to 4 are f32 arithmetic, every
operation rounded, so that all implementations have equal numbers there; the rest is float64 here, and others may
differ by the error of their exp, log and sums:

1. Log-probabilities are those of the raw logits, whatever follows.
2. Penalties. Of a token that is in the prompt or the output: l = l / r if l > 0 else l * r, r the repetition penalty.
   Then of one that is `count` > 0 times in the output: l = l - (frequency * count + presence).
3. At temperature 0 the token is the first by (l descending, id ascending). So it is at temperatures under 1e-5,
   where l / temperature might leave the range of f32 and nothing but the first could come out.
4. z = l / temperature. Candidates are ordered by (z descending, id ascending), compared as numbers: -0 equals 0.
5. top_k > 0 keeps the first k.
6. top_p < 1 keeps the shortest prefix with sum(w of the prefix) >= top_p * sum(w of all that step 5 kept), where
   w = exp(z - z of the first): at least one, all if rounding denies the inequality.
7. min_p > 0 keeps those with w >= min_p.
8. The token is the one with the greatest z + g among those kept, of equals the one with the lowest id. Adding Gumbel
   noise and taking the greatest draws from softmax(z) over the kept (Gumbel 1954; Maddison et al. 2014, "A* sampling").

The noise of token t: g = -log(-log(u)) with u = (word + 0.5) * 2^-32, and word number t % 4 of Philox4x32-10 (Salmon
et al. 2011, "Parallel random numbers: as easy as 1, 2, 3") under the key (seed mod 2^32, seed div 2^32) and the
counter (t div 4, position, choice, 0). `position` is the absolute position of the token being chosen: one more than
that of the row its logits came from.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pagoda.backends.ops import Draw, Floats

Doubles = npt.NDArray[np.float64]
Words = npt.NDArray[np.uint32]
Ids = npt.NDArray[np.int64]

GREEDY_BELOW = np.float32(1e-5)
"""Temperatures under this are taken as 0."""

_ROUNDS = 10
_MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_WEYL = (0x9E3779B9, 0xBB67AE85)
_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)


def philox(counter: Words, key: tuple[int, int]) -> Words:
    """Philox4x32-10: counters [n, 4] to random words [n, 4], under a key of two 32-bit words."""
    c0, c1, c2, c3 = (counter[:, i].astype(np.uint64) for i in range(4))
    k0, k1 = key
    for _ in range(_ROUNDS):
        p0, p1 = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]
        c0, c1, c2, c3 = (p1 >> _HALF) ^ c1 ^ np.uint64(k0), p1 & _LOW, (p0 >> _HALF) ^ c3 ^ np.uint64(k1), p0 & _LOW
        k0, k1 = (k0 + _WEYL[0]) & 0xFFFFFFFF, (k1 + _WEYL[1]) & 0xFFFFFFFF
    return np.stack([c0, c1, c2, c3], axis=1).astype(np.uint32)


def gumbel(ids: Ids, seed: int, position: int, choice: int) -> Doubles:
    """The noise of tokens `ids` [n] at one place: [n]."""
    groups, which = np.unique(ids // 4, return_inverse=True)
    counter = np.zeros((len(groups), 4), np.uint32)
    counter[:, 0] = groups
    counter[:, 1] = position
    counter[:, 2] = choice
    words = philox(counter, (seed & 0xFFFFFFFF, seed >> 32))[which, ids % 4]
    u = (words.astype(np.float64) + 0.5) * 2.0**-32
    noise: Doubles = -np.log(-np.log(u))
    return noise


def log_softmax(logits: Floats) -> Doubles:
    """Natural log-probabilities over the last axis."""
    shifted = logits.astype(np.float64) - logits.max(axis=-1, keepdims=True)
    result: Doubles = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return result


def likeliest(logits: Floats, count: int) -> tuple[tuple[int, float], ...]:
    """The `count` likeliest tokens under raw logits [V] with their log-probabilities, likeliest first, ties by id."""
    logprobs = log_softmax(logits)
    return tuple((int(i), float(logprobs[i])) for i in np.argsort(-logits, kind="stable")[:count])


def penalize(logits: Floats, draw: Draw, prompt: Sequence[int], output: Sequence[int]) -> Floats:
    """Step 2: logits [V] after the repetition, frequency and presence penalties."""
    result = logits.copy()
    seen = np.array(sorted({*prompt, *output}), np.int64)
    r = np.float32(draw.repetition)
    result[seen] = np.where(result[seen] > 0, result[seen] / r, result[seen] * r)
    ids, counts = np.unique(np.array(output, np.int64), return_counts=True)
    result[ids] -= np.float32(draw.frequency) * counts.astype(np.float32) + np.float32(draw.presence)
    return result


@dataclass(frozen=True, slots=True)
class Kept:
    """The candidates that top-k, top-p and min-p leave, in the order of step 4."""

    ids: Ids
    z: Floats
    """Of each of `ids`."""


def keep(logits: Floats, draw: Draw, slack: float = 0.0) -> Kept:
    """Steps 4 to 7, of penalised logits [V] at a temperature of at least `GREEDY_BELOW`.

    `slack` widens both cuts, or narrows them if negative: `top_p + slack` and `min_p - slack`.
    """
    z = logits / np.float32(draw.temperature)
    top_p, min_p = float(np.float32(draw.top_p)), float(np.float32(draw.min_p))
    ids = np.argsort(-z, kind="stable")
    if draw.top_k > 0:
        ids = ids[: draw.top_k]
    weights = np.exp(z[ids].astype(np.float64) - float(z[ids[0]]))
    if top_p < 1:
        sums = np.cumsum(weights)
        enough = np.flatnonzero(sums >= (top_p + slack) * sums[-1])
        last = int(enough[0]) if len(enough) else len(ids) - 1
        ids, weights = ids[: last + 1], weights[: last + 1]
    if min_p > 0:
        ids = ids[weights >= min(min_p - slack, 1.0)]
    return Kept(ids, z[ids])


@dataclass(frozen=True, slots=True)
class Choice:
    """A chosen token, and by how much it won."""

    token: int
    gap: float
    """Its score (z + g, or the logit at temperature 0) less the runner-up's; infinite without one."""


def _first(ids: Ids, scores: Doubles) -> Choice:
    """The id with the greatest score; of equals the lowest."""
    order = np.lexsort((ids, -scores))
    gap = float(scores[order[0]] - scores[order[1]]) if len(ids) > 1 else math.inf
    return Choice(int(ids[order[0]]), gap)


def _choose(penalized: Floats, draw: Draw, slack: float = 0.0) -> Choice:
    """Steps 3 to 8."""
    if np.float32(draw.temperature) < GREEDY_BELOW:
        return _first(np.arange(len(penalized)), penalized.astype(np.float64))
    kept = keep(penalized, draw, slack)
    return _first(kept.ids, kept.z.astype(np.float64) + gumbel(kept.ids, draw.seed, draw.position, draw.choice))


def sample(logits: Floats, draw: Draw, prompt: Sequence[int] = (), output: Sequence[int] = ()) -> Choice:
    """Choose a token from raw logits [V]; `prompt` and `output` are the token ids before it."""
    return _choose(penalize(logits, draw, prompt, output), draw)


def is_settled(
    logits: Floats, draw: Draw, prompt: Sequence[int] = (), output: Sequence[int] = (), tolerance: float = 1e-5
) -> bool:
    """Whether an implementation must choose as `sample` does if its scores, its shares of the sum (top-p) and its w
    (min-p) are within tolerance / 2 of those here.

    Its candidates then lie between those of the narrowed and of the widened cuts. The winner among the widest is its
    winner too if it is among the narrowest, and leads by more than the tolerance.
    """
    if np.float32(draw.temperature) < GREEDY_BELOW:
        return True
    penalized = penalize(logits, draw, prompt, output)
    widest = _choose(penalized, draw, tolerance)
    return widest.gap > tolerance and widest.token in keep(penalized, draw, -tolerance).ids
