"""Checks that a user can run: speculation changes nothing, and tokens are drawn by their probabilities.

Speculation: the same prompts with drafts and without, token by token and log-probability by log-probability; here all
that is guessed is drafted, whether it pays or not. Sampling: first tokens under many seeds against the model's own
probabilities, by Pearson's chi-squared test.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count

from pagoda.backends.texts import NativeTexts
from pagoda.completion import Completion, gather
from pagoda.config import SchedulerConfig
from pagoda.engine import Engine, iterate, validate
from pagoda.engine.speculation import Controller, controller
from pagoda.llm import Opened, engine_config, open_engine
from pagoda.types import MAX_CHOICES, MAX_LOGPROBS, SamplingParams

PROMPTS = (
    "Write the numbers from 1 to 30, each on a line of its own.",
    "Repeat this three times: the rain in Spain stays mainly in the plain.",
    "Tell me about a lighthouse keeper who finds a letter in a bottle.",
    'Write as JSON: Ada Lovelace, born 1815; Grace Hopper, born 1906. Use the keys "name" and "born".',
)
TEMPERATURES = (0.0, 0.8)
RARE = 5.0
"""Expected counts below this are put together: the test is about larger ones."""
UNLIKELY = 1e-4
"""A result that would be rarer than this by chance is a failure."""


@dataclass(frozen=True, slots=True)
class SpeculationCheck:
    """What one prompt gave with drafts and without."""

    prompt: str
    temperature: float
    tokens: int
    accepted: int
    rejected: int
    first_difference: int | None
    """Token at which the outputs part; None if they are equal in every bit."""


@dataclass(frozen=True, slots=True)
class SamplingCheck:
    """First tokens under many seeds."""

    prompt: str
    draws: int
    outcomes: int
    chi_squared: float
    chance: float
    """Of a result so far from what is expected, or further."""

    @property
    def passed(self) -> bool:
        """Whether it may well be chance."""
        return self.chance >= UNLIKELY


def check_speculation(
    model: str, speculate: str, tokens: int, prompts: Sequence[str] = PROMPTS
) -> list[SpeculationCheck]:
    """Every prompt at every temperature, all prompts together; `speculate` is as in `SchedulerConfig`, and not off."""
    opened = open_engine(engine_config(model, speculate=speculate))
    opened.engine.close()
    drafters = controller(speculate, NativeTexts()).drafters
    answers = {}
    for drafted in (False, True):
        policy = Controller(drafters if drafted else (), always=True)
        engine = Engine(opened.runner, opened.tokenizer, SchedulerConfig(), speculation=policy)
        engine.start()
        for temperature in TEMPERATURES:
            answers[drafted, temperature] = _answers(engine, opened, prompts, temperature, tokens)
        engine.close()
    opened.runner.close()
    return [
        _compared(prompt, temperature, *pair)
        for temperature in TEMPERATURES
        for prompt, *pair in zip(prompts, answers[False, temperature], answers[True, temperature], strict=True)
    ]


def _answers(
    engine: Engine, opened: Opened, prompts: Sequence[str], temperature: float, tokens: int
) -> list[tuple[Completion, int, int]]:
    """Each prompt's answer, and how many drafts of it were right and wrong."""
    names = count()
    requests = [
        validate(
            opened.tokenizer.encode_prompt(prompt),
            SamplingParams(temperature=temperature, seed=i, max_tokens=tokens, ignore_eos=True, logprobs=1),
            engine.capacity,
            request_id=f"verify-{next(names)}",
            arrival=time.monotonic(),
        )
        for i, prompt in enumerate(prompts)
    ]
    events = list(iterate(engine, requests))
    drafts = {e.request_id: (e.accepted_drafts, e.rejected_drafts) for e in events if e.finish is not None}
    answers = gather(requests, events, engine.capacity.fingerprint)
    return [(answer, *drafts[answer.request_id]) for answer in answers]


def _compared(
    prompt: str, temperature: float, plain: tuple[Completion, int, int], drafted: tuple[Completion, int, int]
) -> SpeculationCheck:
    one, other = plain[0].choices[0], drafted[0].choices[0]
    pairs = list(zip(one.token_ids, one.logprobs, strict=True)), list(zip(other.token_ids, other.logprobs, strict=True))
    different = None
    if pairs[0] != pairs[1]:
        different = next((i for i, (a, b) in enumerate(zip(*pairs, strict=False)) if a != b), min(map(len, pairs)))
    return SpeculationCheck(prompt, temperature, len(other.token_ids), drafted[1], drafted[2], different)


def check_sampling(model: str, draws: int, prompts: Sequence[str] = PROMPTS[:2]) -> list[SamplingCheck]:
    """First tokens of each prompt at temperature 1, `draws` of them, against exact probabilities of the likeliest."""
    opened = open_engine(engine_config(model))
    checks = [_sampled(opened, prompt, draws) for prompt in prompts]
    opened.close()
    return checks


def _sampled(opened: Opened, prompt: str, draws: int) -> SamplingCheck:
    ids = opened.tokenizer.encode_prompt(prompt)
    choices = min(MAX_CHOICES, draws)
    requests = [
        validate(
            ids,
            SamplingParams(temperature=1.0, seed=seed, n=choices, max_tokens=1, logprobs=MAX_LOGPROBS),
            opened.engine.capacity,
            request_id=f"draw-{seed}",
            arrival=time.monotonic(),
        )
        for seed in range(-(-draws // choices))
    ]
    events = list(iterate(opened.engine, requests))
    got = Counter(token for event in events for token in event.token_ids)
    likeliest = next(event.logprobs[0].top for event in events if event.logprobs)
    total = sum(got.values())
    known = {token: math.exp(logprob) * total for token, logprob in likeliest}
    apart = {token: share for token, share in known.items() if share >= RARE}
    expected = [*apart.values(), total - sum(apart.values())]
    counts = [*(got[token] for token in apart), total - sum(got[token] for token in apart)]
    squares = sum((c - e) ** 2 / e for c, e in zip(counts, expected, strict=True) if e >= RARE)
    freedom = sum(e >= RARE for e in expected) - 1
    return SamplingCheck(prompt, total, freedom + 1, squares, chance_of(squares, freedom))


def chance_of(chi_squared: float, freedom: int) -> float:
    """Of a chi-squared value so large or larger (Wilson & Hilferty 1931: its cube root is nearly normal)."""
    if freedom < 1:
        return 1.0
    spread = 2 / (9 * freedom)
    z = ((chi_squared / freedom) ** (1 / 3) - (1 - spread)) / spread**0.5
    return 0.5 * math.erfc(z / 2**0.5)
