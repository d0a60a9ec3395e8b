"""What subjects make of the work: probabilities beside the reference's, needles, loops, answers. Numbers, no judgement.

All subjects read a passage together, some hundred rows at a time, so that no logits are kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pagoda.backends.ops import Floats
from pagoda.gate.subject import Subject, spare_for
from pagoda.gate.work import LOOP_TOKENS, Asked, Passage, Work

TEMPERATURE = 0.5
"""Of the continuations: low, as loops come where the likeliest token is followed."""
CYCLE, TAIL = 24, 48
"""Longest period that counts as a loop, and how many last tokens must have it."""

Doubles = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Reading:
    """One subject on one passage."""

    length: int
    surprise: Doubles
    """[scored] -log p of each next token, in nats: their mean is the logarithm of the perplexity."""
    divergence: Doubles
    """[scored] KL(reference || subject) of each distribution, in nats."""
    same: npt.NDArray[np.bool_]
    """[scored] whether the likeliest token is the reference's."""
    found: tuple[bool, ...]
    """Of each needle: whether greedy decoding gives its number."""
    looped: tuple[bool, ...]
    """Of each continuation: whether it ends in a loop."""


@dataclass(frozen=True, slots=True, eq=False)
class Measured:
    """One subject on all of the work."""

    readings: tuple[Reading, ...]
    right: tuple[bool, ...]
    """Of each question: whether the right choice is the likeliest."""


def measure(subjects: Sequence[Subject], work: Work) -> list[Measured]:
    """Set the work to each subject; the first is the reference.

    Raises:
        MemoryLimit: no room for the pages of a passage.
    """
    readings = list(zip(*(_read(subjects, passage) for passage in work.passages), strict=True))
    answers = [_answers(subject, work) for subject in subjects]
    for subject in subjects:
        subject.end()
    return [Measured(tuple(each), right) for each, right in zip(readings, answers, strict=True)]


def divergences(subjects: Sequence[Subject], passage: Passage) -> list[float]:
    """Mean KL(first || subject) at a passage's end, of all but the first; nothing else is measured."""
    compared = _compare(subjects, passage)
    for subject in subjects:
        subject.end()
    return [float(divergence.mean()) for _, divergence, _ in compared[1:]]


def _read(subjects: Sequence[Subject], passage: Passage) -> list[Reading]:
    compared = _compare(subjects, passage)
    readings = []
    for subject, (surprise, divergence, same) in zip(subjects, compared, strict=True):
        found = tuple(_finds(subject, passage.needles))
        drawn = subject.draw(passage.after, passage.continuations, LOOP_TOKENS, TEMPERATURE)
        looped = tuple(map(loops, drawn))
        readings.append(Reading(passage.length, surprise, divergence, same, found, looped))
    return readings


def _compare(subjects: Sequence[Subject], passage: Passage) -> list[tuple[Doubles, Doubles, npt.NDArray[np.bool_]]]:
    """Of each subject: surprise, divergence and agreement at each scored row; its pages hold the passage then."""
    begin, rows = passage.length - passage.scored, min(subject.rows() for subject in subjects)
    for subject in subjects:
        subject.begin(passage.length, spare_for(passage.continuations, LOOP_TOKENS))
        subject.feed(passage.ids[:begin])
    following = np.array([*passage.ids[begin + 1 :], passage.after])
    parts: list[list[tuple[Doubles, Doubles, npt.NDArray[np.bool_]]]] = [[] for _ in subjects]
    for start in range(0, passage.scored, rows):
        chunk = passage.ids[begin + start : begin + min(start + rows, passage.scored)]
        theirs = log_softmax(subjects[0].read(chunk))
        weight, likeliest, at = np.exp(theirs), theirs.argmax(-1), np.arange(len(chunk))
        for subject, part in zip(subjects, parts, strict=True):
            ours = theirs if subject is subjects[0] else log_softmax(subject.read(chunk))
            divergence: Doubles = (weight * (theirs - ours)).sum(-1, dtype=np.float64)
            surprise = -ours[at, following[start : start + len(chunk)]].astype(np.float64)
            part.append((surprise, divergence, ours.argmax(-1) == likeliest))
    return [
        (np.concatenate([s for s, _, _ in p]), np.concatenate([d for _, d, _ in p]), np.concatenate([a for *_, a in p]))
        for p in parts
    ]


def log_softmax(logits: Floats) -> Floats:
    """Over the last axis; sums in f64, numbers in f32."""
    low = logits - logits.max(-1, keepdims=True)
    total = np.log(np.exp(low).sum(-1, keepdims=True, dtype=np.float64))
    result: Floats = low - total.astype(np.float32)
    return result


def _finds(subject: Subject, needles: Sequence[Asked]) -> list[bool]:
    """Whether each token of a needle's number is the likeliest: so greedy decoding gives it."""
    tails = [needle.tails[0] for needle in needles]
    sizes = [needle.answers[0] for needle in needles]
    if not tails:
        return []
    logits = subject.ask([tail[:-1] for tail in tails], sizes)  # the row before each token of the number
    return [
        bool((rows.argmax(-1) == tail[-size:]).all()) for rows, tail, size in zip(logits, tails, sizes, strict=True)
    ]


def _answers(subject: Subject, work: Work) -> tuple[bool, ...]:
    """Whether the right choice is likelier than each other one, by log-probability over length in characters.

    Gao et al., "lm-evaluation-harness" call this acc_norm: else short choices would win.
    """
    subject.begin(len(work.opening))
    subject.feed(work.opening)
    tails = [tail for q in work.quiz for tail in q.tails]
    sizes = [size for q in work.quiz for size in q.answers]
    logits = subject.ask([tail[:-1] for tail in tails], sizes)
    sums = iter(
        float(log_softmax(rows)[np.arange(size), tail[-size:]].sum(dtype=np.float64))
        for rows, tail, size in zip(logits, tails, sizes, strict=True)
    )
    right = []
    for q in work.quiz:
        scores = [next(sums) / size for size in q.sizes]
        right.append(all(scores[0] > other for other in scores[1:]))
    return tuple(right)


def loops(output: Sequence[int]) -> bool:
    """Whether the last `TAIL` tokens repeat with a period of at most `CYCLE`."""
    tail = output[-TAIL - CYCLE :]
    return any(all(tail[-i] == tail[-i - p] for i in range(1, TAIL + 1)) for p in range(1, CYCLE + 1))
