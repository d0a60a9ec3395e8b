"""A load of requests on a server, and what its clients saw.

Knows workloads and the client; nothing of the server but OpenAI's format. Closed loops keep so many requests under way;
open ones send each at its time, whether others were answered or not, as real clients do: only so is a queue seen.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from pagoda.bench.client import Client, Reply
from pagoda.bench.outcomes import Outcome
from pagoda.bench.workloads import Ask, Run

WORDS = """
    time year people way day man thing woman life child world school state family student group country problem hand
    part place case week company system program question work government number night point home water room mother
    area money story fact month lot right study book eye job word business issue side kind head house service friend
    father power hour game line end member law car city community name president team minute idea body information
""".split()  # noqa: SIM905
"""A token each in most vocabularies."""


@dataclass(frozen=True, slots=True)
class Target:
    """To what and how requests are sent."""

    client: Client
    model: str
    chat: bool = False
    ignore_eos: bool = True
    """Whether answers go on to their full length; not every server takes this field."""
    extra: tuple[tuple[str, Any], ...] = ()
    """Further fields of every body."""

    def body(self, text: str, output: int) -> dict[str, Any]:
        """One request."""
        prompt: dict[str, Any] = {"messages": [{"role": "user", "content": text}]} if self.chat else {"prompt": text}
        eos = {"ignore_eos": True} if self.ignore_eos else {}
        return {
            "model": self.model, **prompt, "max_tokens": output, "temperature": 0, "stream": True,
            "stream_options": {"include_usage": True}, **eos, **dict(self.extra),
        }  # fmt: skip

    @property
    def path(self) -> str:
        """Of the endpoint."""
        return "/v1/chat/completions" if self.chat else "/v1/completions"


def text_of(runs: Sequence[Run]) -> str:
    """Words for a prompt: about a token each, and the same for the same runs."""
    words: list[str] = []
    for name, length in runs:
        words += random.Random(name).choices(WORDS, k=length)
    return " ".join(words)


async def play(
    target: Target,
    asks: Sequence[Ask],
    concurrency: int | None = None,
    progress: Callable[[int, int], None] = lambda _done, _all: None,
) -> list[Outcome]:
    """Send all asks; an outcome for each turn of each.

    Args:
        concurrency: so many at once, one after another; None sends each at its time.
        progress: is told how many of how many are done.
    """
    outcomes: list[Outcome] = []
    began, done = time.perf_counter(), 0
    slots = asyncio.Semaphore(concurrency or len(asks) or 1)

    async def one(ask: Ask) -> None:
        nonlocal done
        if concurrency is None:
            await asyncio.sleep(max(0.0, began + ask.at - time.perf_counter()))
        async with slots:
            outcomes.extend(await _converse(target, ask, began))
        done += 1
        progress(done, len(asks))

    await asyncio.gather(*(one(ask) for ask in asks))
    return outcomes


async def _converse(target: Target, ask: Ask, began: float) -> list[Outcome]:
    """A request, and its further turns: each has all that was said before."""
    text, outcomes = text_of(ask.prompt), list[Outcome]()
    for turn in range(ask.turns):
        reply = await target.client.stream(target.path, target.body(text, ask.output))
        outcomes.append(_outcome(ask, reply, began))
        if outcomes[-1].refused:
            break
        text += f" {reply.text} {text_of([(f'{ask.prompt[-1][0]} turn {turn}', ask.prompt[-1][1])])}"
    return outcomes


def _outcome(ask: Ask, reply: Reply, began: float) -> Outcome:
    details = reply.usage.get("prompt_tokens_details") or {}
    outcome = Outcome(
        ask,
        reply.sent - began,
        times=[at - began for at in reply.times],
        tokens=int(reply.usage.get("completion_tokens") or 0),
        prompt_tokens=int(reply.usage.get("prompt_tokens") or 0),
        cached_tokens=int(details.get("cached_tokens") or 0),
        answered=reply.ended - reply.sent,
    )
    if reply.error:
        outcome.refused = str(reply.error.get("code") or reply.error.get("type") or f"http_{reply.status}")
        outcome.times = []
    return outcome
