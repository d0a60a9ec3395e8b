"""`NgramDrafter`: what followed the same words before, in the prompt, in the output, or in the tenant's recent outputs.

Prompt lookup (Saxena 2023, "Prompt lookup decoding") with the longest match there is, by suffix automaton (Hu et al.
2024, "SAM decoding"). It needs no model, and learns how often it is right from every token, guessed or not: plain
decoding is its test.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field

from pagoda.engine.request import Sequence
from pagoda.engine.speculation.automaton import ROOT, SuffixAutomaton
from pagoda.engine.speculation.drafter import NO_GUESS, Guess
from pagoda.engine.speculation.odds import Odds

SHORTEST = 2
"""Tokens of a match: a single one says next to nothing."""
HOPELESS = 0.01
"""A draft less likely than this is not worth a thought."""
BREAK = -1
"""Between outputs: no token."""
RECENT = 8192
"""Tokens of outputs that a tenant's newer half holds before it becomes the older one."""
TENANTS = 64
"""Tenants whose outputs are kept, those met last."""
_FROM = (SHORTEST, 3, 4, 8, 16)
"""Lengths of match from which it counts as of another kind."""
_EXPECTED = (0.3, 0.4, 0.5, 0.65, 0.8)
"""Of each kind, how often it is right, before anything was seen."""
_WEIGHT = 3.0
"""Trials' worth of what all requests showed, in what one request is expected to show."""


def _kind(length: int) -> int:
    """Which of `_EXPECTED` a match of this length, at least `SHORTEST`, is of."""
    return bisect_right(_FROM, length) - 1


@dataclass(slots=True)
class _Line:
    """A sequence as far as it was looked at."""

    own: SuffixAutomaton = field(default_factory=SuffixAutomaton)
    others: list[tuple[SuffixAutomaton, tuple[int, int]]] = field(default_factory=list)
    """Recent outputs of its tenant, and where in them its end occurs."""
    odds: Odds = field(default_factory=Odds)
    match: tuple[int, int, SuffixAutomaton | None] = (0, 0, None)
    """(length, place, in which text): the longest match of its end."""


class NgramDrafter:
    """One automaton for each sequence, and up to two for each tenant."""

    name = "ngram"
    seconds = 0.0
    blind = False

    def __init__(self) -> None:
        self._lines: dict[int, _Line] = {}
        self._recent: dict[str, list[SuffixAutomaton]] = {}
        self._odds = tuple(Odds() for _ in _EXPECTED)

    def follow(self, sequence: Sequence, most: int) -> int:
        """Look at tokens that have arrived since."""
        line = self._lines.get(sequence.id)
        if line is None:
            recent = self._recent.get(sequence.key, ())
            line = self._lines[sequence.id] = _Line(others=[(text, (ROOT, 0)) for text in recent])
        seen = len(line.own.text)
        new = sequence.tokens(seen, min(sequence.values, seen + most)) if seen < sequence.values else ()
        for offset, token in enumerate(new):
            if seen + offset >= len(sequence.prompt):
                self._judge(line, token)
            line.own.extend(token)
            line.others = [(text, text.follow(cursor, token)) for text, cursor in line.others]
            line.match = _longest(line)
        return len(new)

    def guess(self, sequence: Sequence, most: int) -> Guess:
        """What followed the longest match, past the tokens in flight."""
        line = self._lines.get(sequence.id)
        if line is None or len(line.own.text) < sequence.values:
            return NO_GUESS
        length, place, text = line.match
        if text is None:
            return NO_GUESS
        skip = sequence.pending
        tokens = _continuation(text, place, skip + most, text is line.own)
        kinds: dict[int, float] = {}
        chance, chances = 1.0, []
        for size in range(length, length + len(tokens)):
            kind = _kind(size)
            each = kinds.get(kind)
            if each is None:
                each = kinds[kind] = line.odds.chance(self._odds[kind].chance(_EXPECTED[kind], _WEIGHT), _WEIGHT)
            chance *= each
            if chance < HOPELESS:
                break
            chances.append(chance)
        return Guess(tokens[skip : len(chances)], tuple(chances[skip:]))

    def verified(self, sequence: Sequence, asked: int, right: int) -> None:
        """It judges its guesses by the tokens themselves."""

    def took(self, tokens: int, seconds: float) -> None:
        """It has the machine room fill in nothing."""

    def forget(self, sequence: Sequence) -> None:
        """Its output is one of its tenant's recent ones now."""
        line = self._lines.pop(sequence.id, None)
        if line is None or not sequence.output:
            return
        recent = self._recent.pop(sequence.key, [])
        self._recent[sequence.key] = recent  # now the one met last
        if not recent or len(recent[-1].text) > RECENT:
            recent.append(SuffixAutomaton())
            del recent[:-2]
        for token in (*sequence.output[-RECENT:], BREAK):
            recent[-1].extend(token)
        if len(self._recent) > TENANTS:
            del self._recent[next(iter(self._recent))]

    def check(self) -> None:
        """Assert that texts are as large as they may be, and automata sound."""
        for odds in self._odds:
            odds.check()
        for recent in self._recent.values():
            assert 1 <= len(recent) <= 2, "a tenant's recent outputs are in two halves"
            for text in recent:
                text.check()
        assert len(self._recent) <= TENANTS, "outputs of too many tenants are kept"
        for line in self._lines.values():
            line.own.check()
            line.odds.check()

    def _judge(self, line: _Line, token: int) -> None:
        """Whether the match foretold this token."""
        length, place, text = line.match
        if text is not None and place < len(text.text):
            right = text.text[place] == token
            line.odds.add(right)
            self._odds[_kind(length)].add(right)


def _longest(line: _Line) -> tuple[int, int, SuffixAutomaton | None]:
    length, place = line.own.suffix()
    text = line.own
    for other, cursor in line.others:
        if cursor[1] > length:
            length, place, text = cursor[1], other.after(cursor), other
    return (length, place, text) if length >= SHORTEST else (0, 0, None)


def _continuation(text: SuffixAutomaton, place: int, most: int, repeats: bool) -> tuple[int, ...]:
    """What follows a place; if the text's own end is reached and it `repeats`, the same again."""
    tokens = text.text[place : place + most]
    if repeats and tokens:
        while len(tokens) < most:
            tokens += tokens[: most - len(tokens)]
    return tuple(tokens[: tokens.index(BREAK)] if BREAK in tokens else tokens)
