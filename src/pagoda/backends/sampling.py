"""How a token is chosen from a row of logits: the reference that the native sampler agrees with, token for token.

Knows logits, parameters and the token's place; knows nothing of batches, programs or text. Pure functions: a token
depends on its logits, its parameters, its history (for the penalties), its seed, choice and position, and on nothing
else.

The rule, for one row of f32 logits l[V]; arithmetic is float64 wherever nothing else is said:

1. Log-probabilities are those of the raw logits, whatever follows.
2. Penalties. Of a token that is in the prompt or the output: l = l / r if l > 0 else l * r, r the repetition penalty.
   Then of one that is `count` > 0 times in the output: l = l - (frequency * count + presence). The result is rounded
   to f32 once, at the end of this step.
3. At temperature 0 the token is the first by (l descending, id ascending). So it is at temperatures under 1e-5,
   where l / temperature would leave the range of f32 and nothing but the first could come out.
4. z = l / temperature, rounded to f32. Candidates are ordered by (z descending, id ascending), compared as numbers:
   -0 equals 0.
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

from pagoda.backends.ops import Floats
from pagoda.types import SamplingParams, TokenLogprob

Doubles = npt.NDArray[np.float64]
Words = npt.NDArray[np.uint32]
Ids = npt.NDArray[np.int64]

GREEDY_BELOW = 1e-5
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


def token_logprob(logits: Floats, token: int, top: int) -> TokenLogprob:
    """The log-probability of a token under raw logits [V], and the `top` likeliest, ties by id."""
    logprobs = log_softmax(logits)
    likeliest = np.argsort(-logits, kind="stable")[:top]
    return TokenLogprob(token, float(logprobs[token]), tuple((int(i), float(logprobs[i])) for i in likeliest))


def penalize(logits: Floats, params: SamplingParams, prompt: Sequence[int], output: Sequence[int]) -> Floats:
    """Step 2: logits [V] after the repetition, frequency and presence penalties, rounded to f32."""
    result = logits.astype(np.float64)
    seen = np.array(sorted({*prompt, *output}), np.int64)
    r = params.repetition_penalty
    result[seen] = np.where(result[seen] > 0, result[seen] / r, result[seen] * r)
    ids, counts = np.unique(np.array(output, np.int64), return_counts=True)
    result[ids] -= params.frequency_penalty * counts + params.presence_penalty
    return result.astype(np.float32)


@dataclass(frozen=True, slots=True)
class Kept:
    """The candidates that top-k, top-p and min-p leave."""

    ids: Ids
    """In the order of step 4."""
    z: Floats
    """Of each of `ids`."""
    cut_gap: float
    """How near top-p and min-p were to another cut: the least distance of a share of the sum from `top_p`, or of a
    w from `min_p`. Infinite if neither is on."""


def keep(logits: Floats, params: SamplingParams) -> Kept:
    """Steps 4 to 7, of penalised logits [V] at a temperature of at least `GREEDY_BELOW`."""
    z = (logits.astype(np.float64) / params.temperature).astype(np.float32)
    ids = np.argsort(-z, kind="stable")
    if params.top_k > 0:
        ids = ids[: params.top_k]
    weights = np.exp(z[ids].astype(np.float64) - float(z[ids[0]]))
    cut_gap = math.inf
    if params.top_p < 1:
        sums = np.cumsum(weights)
        shares = sums / sums[-1]
        cut_gap = float(np.abs(shares - params.top_p).min())
        enough = np.flatnonzero(sums >= params.top_p * sums[-1])
        last = int(enough[0]) if len(enough) else len(ids) - 1
        ids, weights = ids[: last + 1], weights[: last + 1]
    if params.min_p > 0:
        # The first is exactly 1 in any arithmetic: no near tie, whatever min_p is.
        cut_gap = min(cut_gap, float(np.abs(weights[1:] - params.min_p).min(initial=math.inf)))
        ids = ids[weights >= params.min_p]
    return Kept(ids, z[ids], cut_gap)


@dataclass(frozen=True, slots=True)
class Choice:
    """A chosen token, and how clear the choice was."""

    token: int
    gap: float
    """How much greater its score (z + g, or the logit at temperature 0) is than the runner-up's; infinite without
    one."""
    cut_gap: float
    """As `Kept.cut_gap`; infinite at temperature 0."""

    def clear(self, tolerance: float) -> bool:
        """Whether an implementation whose scores, shares and w are within tolerance / 2 must choose the same."""
        return min(self.gap, self.cut_gap) > tolerance


def _first(ids: Ids, scores: Doubles) -> tuple[int, float]:
    """The id with the greatest score, of equals the lowest, and its lead over the next."""
    order = np.lexsort((ids, -scores))
    best = order[0]
    gap = float(scores[best] - scores[order[1]]) if len(ids) > 1 else math.inf
    return int(ids[best]), gap


def sample(
    logits: Floats,
    params: SamplingParams,
    position: int,
    choice: int = 0,
    prompt: Sequence[int] = (),
    output: Sequence[int] = (),
) -> Choice:
    """Choose a token from raw logits [V].

    Args:
        logits: of one row.
        params: with `seed` resolved to a number.
        position: absolute position of the token being chosen.
        choice: which of the request's `n` choices this is.
        prompt: the prompt's token ids.
        output: the token ids chosen so far.

    Raises:
        ValueError: there is no seed, and the temperature asks for noise.
    """
    logits = penalize(logits, params, prompt, output)
    if params.temperature < GREEDY_BELOW:
        token, gap = _first(np.arange(len(logits)), logits.astype(np.float64))
        return Choice(token, gap, math.inf)
    if params.seed is None:
        raise ValueError("seed is None: resolve it to a number before sampling")
    kept = keep(logits, params)
    scores = kept.z.astype(np.float64) + gumbel(kept.ids, params.seed, position, choice)
    token, gap = _first(kept.ids, scores)
    return Choice(token, gap, kept.cut_gap)
