"""`pagoda generate`: one answer, streamed to the terminal."""

from __future__ import annotations

import json as json_module
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pagoda.cli._options import (
    MODEL,
    SCHEDULER,
    MaxTokens,
    MinP,
    ModelOption,
    PrefixCache,
    Quantize,
    Seed,
    Speculate,
    Temperature,
    Threads,
    TopK,
    TopP,
    open_llm,
    sampling,
    with_recommended,
)

if TYPE_CHECKING:
    from pagoda.completion import Completion
    from pagoda.explain import PrefixExplanation


def generate(
    prompt: Annotated[str, typer.Argument(help="What to say to the model; - reads it from standard input.")],
    model: ModelOption = MODEL.model,
    max_tokens: MaxTokens = 256,
    temperature: Temperature = None,
    top_p: TopP = None,
    top_k: TopK = None,
    min_p: MinP = None,
    seed: Seed = None,
    threads: Threads = None,
    quantize: Quantize = None,
    prefix_cache: PrefixCache = True,
    explain: Annotated[
        bool, typer.Option(help="Say on standard error what of the prompt was in the cache, and why no more.")
    ] = False,
    speculate: Speculate = SCHEDULER.speculate,
    raw: Annotated[bool, typer.Option(help="Continue the text as it stands, without the chat template.")] = False,
    json: Annotated[bool, typer.Option(help="Print a last line with text, tokens and timings as JSON.")] = False,
) -> None:
    """Answer one prompt and stream the answer.

    Models made for conversation answer it as a message; with [bold]--raw[/bold], and for all other models, the text is
    continued as it stands.

    Example: [bold]pagoda generate "Name three rivers." --max-tokens 64 --seed 1[/bold]
    """
    given = sampling(max_tokens=max_tokens, temperature=temperature, top_p=top_p, top_k=top_k, min_p=min_p, seed=seed)
    text = sys.stdin.read() if prompt == "-" else prompt
    options: Any = {"threads": threads, "quantize": quantize, "speculate": speculate, "prefix_cache": prefix_cache}
    with open_llm(model, max_num_seqs=1, **options) as llm:
        templated = llm.tokenizer.has_chat_template and not raw
        asked: Any = [{"role": "user", "content": text}] if templated else text
        with llm.stream(asked, with_recommended(llm, given)) as events:
            for event in events:
                sys.stdout.write(event.text)
                sys.stdout.flush()
        sys.stdout.write("\n")
        why = llm.explain(events.completion()) if explain else None
        if json:
            report = _report(events.completion(), llm.load_s)
            if explain:
                report["explain"] = {"cache": [why and asdict(why)]}
            sys.stdout.write(json_module.dumps(report) + "\n")
        sys.stdout.flush()
        if why is not None:
            sys.stderr.write("".join(f"{line}\n" for line in _told(why)))


def _told(why: PrefixExplanation) -> list[str]:
    """An explanation, for people."""
    saved = "" if why.saved_s is None or not why.matched_tokens else f"; about {why.saved_s:.3f} s saved"
    lines = [
        f"cache: {why.matched_tokens} of {why.prompt_tokens} prompt tokens found, in {why.pages} pages{saved}",
        f"cache: {why.why} ({why.cause}), at character {why.matched_characters}: {json_module.dumps(why.prompt)}",
    ]
    return lines + ([f"cache: kept is {json_module.dumps(why.kept)}"] if why.kept is not None else [])


def _report(completion: Completion, load_s: float) -> dict[str, Any]:
    """The last line of `--json`; times in seconds, from the moment the loaded model was asked."""
    choice = completion.choices[0]
    timings: dict[str, float | None] = {"load_s": load_s}
    if choice.timings is not None:
        timings["queued_s"] = choice.timings.queued
        timings["ttft_s"] = choice.timings.first_token
        timings["tpot_s"] = choice.tpot
        timings["total_s"] = choice.timings.total
    return {
        "text": choice.text,
        "token_ids": list(choice.token_ids),
        "finish_reason": str(choice.finish_reason),
        "prompt_tokens": completion.usage.prompt_tokens,
        "completion_tokens": completion.usage.completion_tokens,
        "cached_tokens": completion.usage.cached_tokens,
        "seed": completion.seed,
        "system_fingerprint": completion.system_fingerprint,
        "timings": {name: value if value is None else round(value, 6) for name, value in timings.items()},
    }
