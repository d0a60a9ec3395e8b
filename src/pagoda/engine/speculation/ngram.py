"""`NgramDrafter`: what followed the same words before, in the prompt, in the output, or in the tenant's recent outputs.

Prompt lookup (Saxena 2023, "Prompt lookup decoding") with the longest match there is, by suffix automaton (Hu et al.
2024, "SAM decoding"). It needs no model, and learns how often it is right from every token, guessed or not: plain
decoding is its test. An output that never repeats anything is looked at less and less often.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence as Many
from dataclasses import dataclass, field

from pagoda.engine.request import Sequence
from pagoda.engine.speculation.drafter import MOST_DRAFTS, NO_GUESS, Guess
from pagoda.engine.speculation.odds import Bias, Odds
from pagoda.engine.speculation.texts import BREAK, Line, Look, Text, Texts

SHORTEST = 2
"""Tokens of a match: a single one says next to nothing."""
HOPELESS = 0.01
"""A draft less likely than this is not worth a thought."""
RECENT = 8192
"""Tokens of outputs that a tenant's newer half holds before it becomes the older one."""
TENANTS = 64
"""Tenants whose outputs are kept, those met last."""
IN_FLIGHT = 4
"""Tokens in flight of one sequence that guesses reach past."""
LOOKS = 4096
"""Tokens that are looked at in one step: a long prompt takes several, of some tenths of a millisecond."""
PATIENCE = 16
"""After so many looks in vain every second step is looked at, after twice as many every third, and so on."""
LONGEST_REST = 7
"""Steps that pass without a look, at most."""
_FROM = (SHORTEST, 3, 4, 8, 16)
"""Lengths of match from which it counts as of another kind."""
_WARMTHS = (0.0, 0.5)
"""Temperatures up to which outputs are alike."""
_EXPECTED = (0.4, 0.55, 0.7, 0.85, 0.9)
"""Of each kind, how often it is right, before anything was seen."""
_WEIGHT = 8.0
"""Trials' worth of what was expected, of a kind by all requests and of one request by all kinds: of those tried on
recorded outputs it foretells best.
"""


def _kind(length: int) -> int:
    """Which of `_EXPECTED` a match of this length, at least `SHORTEST`, is of."""
    return bisect_right(_FROM, length) - 1


@dataclass(slots=True)
class _Follower:
    """A sequence as far as it was looked at."""

    line: Line
    common: tuple[Odds, ...]
    """Of all sequences as warm as this one, by kind of match."""
    bias: Bias = field(default_factory=Bias)
    """Of this one, against all of them."""
    seen: int = 0
    length: int = 0
    """Of the longest match."""
    tokens: tuple[int, ...] = ()
    """What followed it."""
    vain: int = 0
    """Looks, and drafts that were wrong, since one was right."""
    rest: int = 0
    """Steps to come without a look."""

    def learn(self, trials: Many[tuple[int, bool]]) -> None:
        """(length of a match, whether it was right) of each."""
        for length, right in trials:
            kind = _kind(length)
            self.bias.add(right, self.common[kind].chance(_EXPECTED[kind], _WEIGHT))
            self.common[kind].add(right)

    def chances(self, most: int) -> list[float]:
        """How likely the first token is right, the first two are, and so on."""
        each: dict[int, float] = {}
        chance, found = 1.0, list[float]()
        for length in range(self.length, self.length + min(len(self.tokens), most)):
            kind = _kind(length)
            if kind not in each:
                common = self.common[kind].chance(_EXPECTED[kind], _WEIGHT)
                each[kind] = self.bias.applied(common, _WEIGHT)
            chance *= each[kind]
            if chance < HOPELESS:
                break
            found.append(chance)
        return found


class NgramDrafter:
    """One line for each sequence, and up to two texts for each tenant.

    Args:
        texts: keeps them.
    """

    name = "ngram"
    seconds = 0.0
    blind = False

    def __init__(self, texts: Texts) -> None:
        self._texts = texts
        self._followers: dict[int, _Follower] = {}
        self._recent: dict[str, list[Text]] = {}
        self._odds = tuple(tuple(Odds() for _ in _EXPECTED) for _ in (*_WARMTHS, None))

    def look(self, sequences: Many[Sequence]) -> None:
        """All in one call, at what has come since the last look."""
        left, looks, looking = LOOKS, list[Look](), list[_Follower]()
        for sequence in sequences:
            follower = self._followers.get(sequence.id) or self._open(sequence)
            if follower.rest:
                follower.rest -= 1
                continue
            seen, new = follower.seen, min(sequence.values - follower.seen, left)
            if new > 0:
                left -= new
                follower.seen = seen + new
                silent = max(len(sequence.prompt) - seen, 0)
                looks.append(Look(follower.line, sequence.tokens(seen, seen + new), silent))
                looking.append(follower)
        found = self._texts.follow(looks, SHORTEST, MOST_DRAFTS + IN_FLIGHT) if looks else ()
        for follower, (follower.length, follower.tokens, trials) in zip(looking, found, strict=True):
            follower.learn(trials)
            follower.vain += 1
            follower.rest = min(follower.vain // PATIENCE, LONGEST_REST)

    def guess(self, sequence: Sequence, most: int) -> Guess:
        """What followed the longest match, past the tokens in flight."""
        follower = self._followers.get(sequence.id)
        if follower is None or not follower.tokens or follower.seen < sequence.values:
            return NO_GUESS
        skip = sequence.pending
        chances = follower.chances(skip + most)
        if len(chances) <= skip:
            return NO_GUESS
        sure = chances[skip - 1] if skip else 1.0
        return Guess(follower.tokens[skip : len(chances)], tuple(chances[skip:]), sure)

    def verified(self, sequence: Sequence, asked: int, right: int) -> None:
        """It judges its guesses by the tokens themselves; here it learns whether looking was in vain."""
        if follower := self._followers.get(sequence.id):
            follower.vain = 0 if right else follower.vain + asked
            follower.rest *= not right

    def took(self, tokens: int, seconds: float) -> None:
        """It has the machine room fill in nothing."""

    def forget(self, sequence: Sequence) -> None:
        """Its output is one of its tenant's recent ones now."""
        if self._followers.pop(sequence.id, None) is None or not sequence.output:
            return
        recent = self._recent.pop(sequence.key, [])
        self._recent[sequence.key] = recent  # now the one met last
        if not recent or len(recent[-1]) > RECENT:
            recent.append(self._texts.text())
            del recent[:-2]
        recent[-1].extend([*sequence.output[-RECENT:], BREAK])
        if len(self._recent) > TENANTS:
            del self._recent[next(iter(self._recent))]

    def check(self) -> None:
        """Assert that texts are as large as they may be, and sound."""
        for kinds in self._odds:
            for odds in kinds:
                odds.check()
        for recent in self._recent.values():
            assert 1 <= len(recent) <= 2, "a tenant's recent outputs are in two halves"
            for text in recent:
                text.check()
        assert len(self._recent) <= TENANTS, "outputs of too many tenants are kept"
        for follower in self._followers.values():
            assert len(follower.line) == follower.seen, "a line is not as long as what was looked at"
            follower.line.check()
            follower.bias.check()

    def _open(self, sequence: Sequence) -> _Follower:
        warmth = bisect_left(_WARMTHS, sequence.state.request.params.temperature)
        line = self._texts.line(self._recent.get(sequence.key, ()))
        follower = self._followers[sequence.id] = _Follower(line, self._odds[warmth])
        return follower
