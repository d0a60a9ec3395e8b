"""What the prefix cache gives: users with one long system prompt, one after another and at once; a chat of many turns.

Physics: a prompt's first token waits for all its tokens to be computed, unless they are found. With 2,000 shared tokens
and 20 own ones, a user after the first has a hundredth of the work; the rest is one step's fixed cost.

    PYTHONPATH=src python benchmarks/prefix.py [--model PATH] [--users 32] [--shared 2000] [--output 64]
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Iterable
from itertools import count

from pagoda.engine import iterate, validate
from pagoda.llm import Opened, engine_config, open_engine
from pagoda.types import GenerateRequest, SamplingParams, Timings

OWN = 20
"""Tokens of each user's own."""
TURNS = 20
NAMES = count()


def ask(made: Opened, prompt: Iterable[int], output: int) -> GenerateRequest:
    params = SamplingParams(max_tokens=output, temperature=0, ignore_eos=True)
    capacity = made.engine.capacity
    return validate(tuple(prompt), params, capacity, request_id=str(next(NAMES)), arrival=time.monotonic())


def run(made: Opened, requests: list[GenerateRequest]) -> tuple[dict[str, Timings], int, dict[str, list[int]]]:
    """Timings and output by request, and how many prompt tokens were found."""
    timings, found, output = {}, 0, {}
    for event in iterate(made.engine, requests):
        output.setdefault(event.request_id, []).extend(event.token_ids)
        if event.finish is not None:
            assert event.timings is not None
            timings[event.request_id] = event.timings
            found += event.cached_tokens
    return timings, found, output


def users(args: argparse.Namespace, first: int) -> list[list[int]]:
    """Prompts of which all begin alike, and no other lot does."""
    shared = [first, *((7 * i + first) % 40_000 + 100 for i in range(args.shared - 1))]
    return [[*shared, 1000 + user, *range(200, 200 + OWN - 1)] for user in range(args.users)]


def shared_prompt(args: argparse.Namespace, prefix_cache: bool) -> dict[str, float]:
    made = open_engine(engine_config(args.model, prefix_cache=prefix_cache, max_num_seqs=64))
    try:
        single = []
        for prompt in users(args, 1)[: args.users if prefix_cache else 1]:
            timings, _, _ = run(made, [ask(made, prompt, 1)])
            single.extend(t.first_token for t in timings.values())
        start = time.monotonic()
        timings, found, _ = run(made, [ask(made, prompt, args.output) for prompt in users(args, 2)])
        wall = time.monotonic() - start
        return {
            "first_ttft_s": single[0],
            "later_ttft_s": statistics.median(single[1:] or single),
            "together_last_ttft_s": max(t.first_token for t in timings.values()),
            "together_hit_rate": found / (args.users * (args.shared + OWN)),
            "together_output_tok_s": args.users * args.output / wall,
        }
    finally:
        made.close()


def chat(args: argparse.Namespace) -> dict[str, float]:
    made = open_engine(engine_config(args.model))
    try:
        history, ttft = list(range(300, 360)), []
        for turn in range(TURNS):
            request = ask(made, history, 30)
            timings, _, output = run(made, [request])
            ttft.append(timings[request.id].first_token)
            history += [*output[request.id], *range(400 + turn, 420 + turn)]
        return {"turn_2_ttft_s": ttft[1], "turn_20_ttft_s": ttft[-1]}
    finally:
        made.close()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--users", type=int, default=32)
    parser.add_argument("--shared", type=int, default=2000)
    parser.add_argument("--output", type=int, default=64)
    args = parser.parse_args()
    on, off, turns = shared_prompt(args, True), shared_prompt(args, False), chat(args)
    figures = {
        **{f"on_{name}": round(value, 4) for name, value in on.items()},
        **{f"off_{name}": round(value, 4) for name, value in off.items() if name != "later_ttft_s"},
        **{name: round(value, 4) for name, value in turns.items()},
        "later_over_first": round(on["later_ttft_s"] / on["first_ttft_s"], 4),
        "together_last_over_first_off": round(on["together_last_ttft_s"] / off["first_ttft_s"], 4),
        "output_rate_on_over_off": round(on["together_output_tok_s"] / off["together_output_tok_s"], 2),
        "turn_20_over_turn_2": round(turns["turn_20_ttft_s"] / turns["turn_2_ttft_s"], 2),
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
