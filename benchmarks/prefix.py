"""What the prefix cache gives: users with one long system prompt, one after another and at once; a chat of many turns;
many choices of one long prompt.

Physics: a prompt's first token waits for all its tokens to be computed, unless they are found. With 2,000 shared tokens
and 20 own ones, a user after the first has a hundredth of the work; the rest is one step's fixed cost. Of users who
come all at once to an empty cache, one must compute the shared tokens and the others wait for that: the last one's TTFT
is at least that of one user alone. Once the prompt is kept (it was asked before, or warmed), all of them have a
hundredth of the work each. Decoding reads each user's whole context for each token, found or not.

    PYTHONPATH=src python benchmarks/prefix.py [--model PATH] [--users 32] [--shared 2000] [--output 64]

Prints one line of JSON; the keys that end in the issue's figures are ratios: `later_over_first`, `last_over_alone_*`,
`hit_rate_*`, `rate_on_over_off_*`, `turn_20_over_turn_2`, `n8_pages_over_bound`.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import count

from pagoda.engine import iterate, validate
from pagoda.llm import Opened, engine_config, open_engine
from pagoda.obs.observer import EngineState, NoObserver
from pagoda.plan import StepPlan, StepResult
from pagoda.types import GenerateRequest, SamplingParams

OWN = 20
"""Tokens of each user's own."""
TURNS = 20
NAMES = count()


class Peak(NoObserver):
    """Remembers the most pages in use after any step."""

    def __init__(self) -> None:
        self.pages = 0

    def stepped(self, plan: StepPlan, result: StepResult, state: EngineState) -> None:  # noqa: ARG002
        """A step was finished and applied."""
        self.pages = max(self.pages, state.pages_used)


@dataclass(frozen=True)
class Served:
    """What came of some requests at once: in the order of their submission."""

    ttft: list[float]
    """Seconds."""
    output: list[list[int]]
    hit_rate: float
    """Prompt tokens found."""
    rate: float
    """Output tokens a second, from the first submission to the last token."""


def ask(made: Opened, prompt: Iterable[int], output: int, n: int = 1) -> GenerateRequest:
    params = SamplingParams(max_tokens=output, temperature=0 if n == 1 else 1, ignore_eos=True, n=n)
    capacity = made.engine.capacity
    return validate(tuple(prompt), params, capacity, request_id=str(next(NAMES)), arrival=time.monotonic())


def run(made: Opened, requests: list[GenerateRequest]) -> Served:
    began, found = time.monotonic(), 0
    ttft: dict[str, float] = {}
    output: dict[str, list[int]] = {request.id: [] for request in requests}
    for event in iterate(made.engine, requests):
        output[event.request_id].extend(event.token_ids)
        if event.finish is not None:
            assert event.timings is not None, event.error
            ttft[event.request_id] = event.timings.first_token
            found += event.cached_tokens
    wall = time.monotonic() - began
    tokens, prompts = sum(map(len, output.values())), sum(len(request.prompt) for request in requests)
    return Served([ttft[r.id] for r in requests], [output[r.id] for r in requests], found / prompts, tokens / wall)


def users(args: argparse.Namespace, first: int, vocabulary: int) -> list[list[int]]:
    """Prompts of which all begin alike, and no other lot does."""
    span = vocabulary - 100
    shared = [100 + (first * 31) % span, *(100 + (7 * i + first) % span for i in range(args.shared - 1))]
    return [
        [*shared, 100 + user % span, *(100 + i % span for i in range(200, 200 + OWN - 1))] for user in range(args.users)
    ]


def opened(args: argparse.Namespace, peak: Peak | None = None, **options: bool) -> Opened:
    """With room for all users' whole contexts, so that neither way waits for pages."""
    config = engine_config(args.model, max_num_seqs=64, kv_memory=args.kv_memory, **options)  # type: ignore[arg-type]
    made = open_engine(config, peak or NoObserver())
    run(made, [ask(made, (120 + i % 150 for i in range(min(args.shared, 512))), 2)])  # buffers grow, threads wake
    return made


def one_by_one(args: argparse.Namespace, made: Opened) -> list[float]:
    """TTFT of each user, one after another."""
    prompts = users(args, 1, made.engine.capacity.vocabulary)
    return [run(made, [ask(made, prompt, 1)]).ttft[0] for prompt in prompts]


def at_once(args: argparse.Namespace, made: Opened, first: int) -> Served:
    prompts = users(args, first, made.engine.capacity.vocabulary)
    return run(made, [ask(made, prompt, args.output) for prompt in prompts])


def shared_prompt(args: argparse.Namespace) -> dict[str, float]:
    """The cache on against off."""
    made = opened(args)
    try:
        ttft = one_by_one(args, made)
        cold, warm = at_once(args, made, 2), at_once(args, made, 2)
    finally:
        made.close()
    made = opened(args, prefix_cache=False)
    try:
        alone = run(made, [ask(made, users(args, 1, made.engine.capacity.vocabulary)[0], 1)]).ttft[0]
        off = at_once(args, made, 2)
    finally:
        made.close()
    assert cold.output == warm.output == off.output, "the cache changes an output"
    later = ttft[1:]
    return {
        "first_ttft_s": ttft[0],
        "later_ttft_s": statistics.median(later),
        "later_ttft_s_worst": max(later),
        "later_over_first": statistics.median(later) / ttft[0],
        "later_over_first_worst": max(later) / ttft[0],
        "alone_ttft_s_off": alone,
        "last_ttft_s_cold": max(cold.ttft),
        "last_ttft_s_warm": max(warm.ttft),
        "last_ttft_s_off": max(off.ttft),
        "last_over_alone_cold": max(cold.ttft) / alone,
        "last_over_alone_warm": max(warm.ttft) / alone,
        "hit_rate_cold": cold.hit_rate,
        "hit_rate_warm": warm.hit_rate,
        "output_tok_s_cold": cold.rate,
        "output_tok_s_warm": warm.rate,
        "output_tok_s_off": off.rate,
        "rate_on_over_off_cold": cold.rate / off.rate,
        "rate_on_over_off_warm": warm.rate / off.rate,
    }


def chat(args: argparse.Namespace) -> dict[str, float]:
    """A conversation, each turn with all before it."""
    made = opened(args)
    try:
        history, ttft = [150 + i % 100 for i in range(60)], []
        for turn in range(TURNS):
            served = run(made, [ask(made, history, args.answer)])
            ttft.append(served.ttft[0])
            history += [*served.output[0], *(100 + (turn + i) % 100 for i in range(OWN))]
    finally:
        made.close()
    return {"turn_2_ttft_s": ttft[1], "turn_20_ttft_s": ttft[-1], "turn_20_over_turn_2": ttft[-1] / ttft[1]}


def choices(args: argparse.Namespace, n: int = 8) -> dict[str, float]:
    """Pages that several choices of one prompt take: the prompt's, and each choice's own."""
    peak = Peak()
    made = opened(args, peak)
    try:
        prompt = users(args, 3, made.engine.capacity.vocabulary)[0][: args.shared]
        peak.pages = 0
        run(made, [ask(made, prompt, args.output, n)])
        size = made.engine.capacity.page_size
    finally:
        made.close()
    fork, end = len(prompt) - 1, len(prompt) + args.output - 1  # the last token needs no slot
    tail = -(-end // size) - fork // size
    bound = 1.1 * -(-len(prompt) // size) + n * tail
    return {"n8_pages": peak.pages, "n8_bound": bound, "n8_pages_over_bound": peak.pages / bound}


def parsed(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--users", type=int, default=32)
    parser.add_argument("--shared", type=int, default=2000)
    parser.add_argument("--output", type=int, default=64)
    parser.add_argument("--answer", type=int, default=30, help="Tokens of each answer of the chat.")
    parser.add_argument("--kv-memory", type=int, default=1_700_000_000, help="Bytes; for all users' contexts at once.")
    return parser.parse_args(arguments)


def measure(args: argparse.Namespace) -> dict[str, float]:
    figures = shared_prompt(args) | chat(args) | choices(args)
    return {name: round(value, 4) for name, value in figures.items()}


if __name__ == "__main__":
    print(json.dumps(measure(parsed())))
