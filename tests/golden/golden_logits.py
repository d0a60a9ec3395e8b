"""Compare logits with a golden file made by make_smollm2.py (whose header describes the arrays and the bounds).

Knows NumPy and the file's layout; nothing of Pagoda, so the same comparison serves any engine.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Comparison:
    """How n positions of an engine differ from the reference; every array is [n]."""

    difference: Array  # largest |log-probability - reference| over the stored tokens
    same: Array  # whether the greedy token is the reference's
    gap: Array  # the reference's first log-probability less its second
    kl: Array  # estimate of KL(reference || ours) without bias; single positions may be slightly negative
    floor: Array  # a lower bound of that KL: everything outside the stored top taken as one token

    def agreement(self) -> float:
        """The share of positions with the same greedy token."""
        return float(self.same.mean())


class Golden:
    """The arrays of one golden file."""

    def __init__(self, path: Path) -> None:
        with np.load(path) as file:
            self.arrays: dict[str, Array] = {name: file[name] for name in file.files}
        self.sha256 = str(self.arrays["model_sha256"])
        self.vocab = int(self.arrays["full_logp"].shape[1])

    def sequences(self) -> Iterator[tuple[str, slice, list[int]]]:
        """Each sequence: its name, its rows, its token ids."""
        offsets = self.arrays["offsets"].tolist()
        for name, start, stop in zip(self.arrays["names"].tolist(), offsets, offsets[1:], strict=False):
            yield name, slice(start, stop), self.arrays["ids"][start:stop].tolist()

    def compare(self, rows: slice, logits: Array) -> Comparison:
        """Compare `logits` [n, V], the raw ones of all positions of `rows`, with the reference."""
        count = rows.stop - rows.start
        if logits.shape != (count, self.vocab):
            raise ValueError(f"logits have the shape {logits.shape}; these rows need {(count, self.vocab)}")
        ours = log_softmax(logits)
        excess, worst = {}, np.zeros(count)
        for name in ("top", "tail", "spot"):
            ids = self.arrays[name + "_ids"][rows].astype(np.int64)
            excess[name] = self.arrays[name + "_logp"][rows] - np.take_along_axis(ours, ids, 1)
            worst = np.maximum(worst, np.abs(excess[name]).max(1))
        top_ids = self.arrays["top_ids"][rows].astype(np.int64)
        weight = np.exp(self.arrays["top_logp"][rows].astype(np.float64))
        rest = self.arrays["rest"][rows].astype(np.float64)
        known = (weight * excess["top"]).sum(1)
        ours_rest = np.maximum(1.0 - np.exp(np.take_along_axis(ours, top_ids, 1)).sum(1), 1e-12)
        return Comparison(
            difference=worst,
            same=logits.argmax(1) == top_ids[:, 0],
            gap=self.arrays["gap"][rows],
            kl=known + rest * excess["tail"].mean(1),
            floor=known + rest * np.log(np.maximum(rest, 1e-12) / ours_rest),
        )

    def exact_kl(self, rows: slice, logits: Array) -> Array:
        """KL(reference || ours) over the whole vocabulary at those of `rows` that are stored whole."""
        full = self.arrays["full_rows"]
        inside = (full >= rows.start) & (full < rows.stop)
        theirs = self.arrays["full_logp"][inside].astype(np.float64)
        ours = log_softmax(logits[full[inside] - rows.start])
        return np.asarray((np.exp(theirs) * (theirs - ours)).sum(1))


def log_softmax(logits: Array) -> Array:
    """Natural log of the softmax along the last axis, in float64."""
    shifted = logits.astype(np.float64) - logits.max(-1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(-1, keepdims=True)))
