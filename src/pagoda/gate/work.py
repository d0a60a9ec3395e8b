"""The work that is set to every subject, in tokens: passages of several lengths, and questions.

Everything is settled before anything is computed, so that all subjects get the same, and it is known how much it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pagoda.errors import InvalidConfig
from pagoda.gate import text
from pagoda.gate.subject import DECODE_COST, PAGE
from pagoda.text.tokenizer import Tokenizer

LENGTHS = (512, 2048, 8000)
QUICK_LENGTHS = (512, 2048)
SCORED = 512
"""Most tokens at a passage's end whose probabilities are compared."""
NEEDLES = 10
"""Facts hidden in a passage, if there is room."""
LOOP_TOKENS = 96
"""Of a continuation that is looked at for loops: `TAIL + CYCLE` at least."""
SHORTEST = 4 * PAGE


@dataclass(frozen=True, slots=True)
class Asked:
    """Continuations of one text, of which the last tokens are an answer; the first one is right."""

    tails: tuple[tuple[int, ...], ...]
    answers: tuple[int, ...]
    """How many last tokens of each are the answer."""
    sizes: tuple[int, ...]
    """Of each answer in characters."""


@dataclass(frozen=True, slots=True)
class Passage:
    """A long text: filler with needles in it, then prose."""

    ids: tuple[int, ...]
    """Whole pages."""
    after: int
    """The token after them."""
    scored: int
    """How many at the end are prose."""
    needles: tuple[Asked, ...]
    """Each with its number as its only answer."""
    continuations: int
    """How many to draw at its end."""

    @property
    def length(self) -> int:
        """Tokens."""
        return len(self.ids)


@dataclass(frozen=True, slots=True)
class Work:
    """All that is set to each subject."""

    passages: tuple[Passage, ...]
    opening: tuple[int, ...]
    """What comes before every question: whole pages."""
    quiz: tuple[Asked, ...]

    @property
    def positions(self) -> int:
        """Longest sequence, in tokens."""
        ends = [p.length + LOOP_TOKENS for p in self.passages]
        ends += [p.length + len(tail) for p in self.passages for needle in p.needles for tail in needle.tails]
        ends += [len(self.opening) + len(tail) for question in self.quiz for tail in question.tails]
        return max(ends) + PAGE

    @property
    def rows(self) -> int:
        """What one subject's share comes to, in rows of prompts."""
        # The last token of an answer is looked up, not computed.
        asked = sum(len(t) - 1 for p in self.passages for n in p.needles for t in n.tails)
        asked += len(self.opening) + sum(len(t) - 1 for q in self.quiz for t in q.tails)
        drawn = sum(p.continuations for p in self.passages) * LOOP_TOKENS * DECODE_COST
        return sum(p.length for p in self.passages) + asked + drawn


def set_work(tokenizer: Tokenizer, context: int, lengths: Sequence[int] | None = None, quick: bool = False) -> Work:
    """The work for a model of this context. Without `lengths`, those of the usual ones that fit it.

    Raises:
        InvalidConfig: a length that is too short, or does not fit the context.
    """
    most = (context - LOOP_TOKENS - 2 * PAGE) // PAGE * PAGE
    if lengths is None:
        usual = QUICK_LENGTHS if quick else LENGTHS
        lengths = [n for n in usual if n <= most] or [most]
    for n in lengths:
        if not SHORTEST <= n <= most:
            raise InvalidConfig(f"lengths must be {SHORTEST} to {most} tokens for this model, got {n}")
    said, scored = tokenizer.encode(text.prose()), 256 if quick else SCORED
    passages, begin = [], 0
    for seed, n in enumerate(sorted(set(lengths))):
        drawn = 4 if quick or n > 4096 else 8
        passages.append(_passage(tokenizer, said, begin, n // PAGE * PAGE, scored, seed, drawn))
        begin += passages[-1].scored
    asked = text.questions()[:: 2 if quick else 1]
    opening = tokenizer.encode_prompt(text.EXAMPLES)
    return Work(tuple(passages), opening[len(opening) % PAGE :], tuple(_question(tokenizer, q) for q in asked))


def _passage(
    tokenizer: Tokenizer, said: Sequence[int], begin: int, length: int, scored: int, seed: int, continuations: int
) -> Passage:
    scored = min(scored, length // 2)
    body = length - scored
    facts = [(n, tokenizer.encode("\n\n" + n.fact)) for n in text.needles(seed, NEEDLES)]
    facts = facts[: body // 2 // max(len(ids) for _, ids in facts)]
    around = _filled(tokenizer, seed, body - sum(len(ids) for _, ids in facts))
    parts: list[int] = []
    for i, (_, ids) in enumerate(facts):
        start, end = (len(around) * max(0, 2 * j + 1) // (2 * len(facts)) for j in (i - 1, i))
        parts += around[start if i else 0 : end] + list(ids)
    parts += around[len(around) * (2 * len(facts) - 1) // (2 * len(facts)) if facts else 0 :]
    tail = [said[(begin + i) % len(said)] for i in range(scored + 1)]
    return Passage(
        (*parts, *tail[:-1]), tail[-1], scored, tuple(_needle(tokenizer, n) for n, _ in facts), continuations
    )


def _filled(tokenizer: Tokenizer, seed: int, tokens: int) -> list[int]:
    """So many tokens of filler, as the beginning of a prompt."""
    ids: list[int] = []
    for paragraph in text.filler(seed):
        ids += tokenizer.encode(paragraph) if ids else tokenizer.encode_prompt(paragraph)
        if len(ids) >= tokens:
            return ids[:tokens]
    raise AssertionError("filler has no end")


def _needle(tokenizer: Tokenizer, needle: text.Needle) -> Asked:
    return _asked(tokenizer, needle.question, (needle.number,))


def _question(tokenizer: Tokenizer, question: text.Question) -> Asked:
    return _asked(tokenizer, f"Question: {question.text}\nAnswer:", question.choices)


def _asked(tokenizer: Tokenizer, before: str, answers: Sequence[str]) -> Asked:
    """Each answer after a blank."""
    prompt, ids = tokenizer.encode(before), [tokenizer.encode(" " + a) for a in answers]
    return Asked(tuple((*prompt, *answer) for answer in ids), tuple(map(len, ids)), tuple(len(a) for a in answers))
