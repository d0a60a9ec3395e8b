"""What `benchmarks/speculation.py` has models write: prompts, and a batch of answers measured.

A small model seldom does as it is told. So that an answer does repeat its prompt, two tasks are not asked for but
begun: a file's next version, after versions that differ in a name, and a list's next copy.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from pagoda.engine import Engine, iterate, validate
from pagoda.llm import Opened
from pagoda.types import GenerateRequest, SamplingParams

CODE = """def total_price(items, tax_rate, discount):
    subtotal = 0.0
    for item in items:
        subtotal += item.price * item.quantity
    discounted = subtotal * (1.0 - discount)
    tax = discounted * tax_rate
    return round(discounted + tax, 2)


def average_price(items):
    if not items:
        return 0.0
    return sum(item.price for item in items) / len(items)
"""
LIST = """Order 1041: Ada Lovelace, 12 St James Square, London. Two brass gears and one punched card.
Order 1042: Charles Babbage, 1 Dorset Street, London. Nine hundred brass gears, delivery in parts.
Order 1043: Grace Hopper, 5 Navy Yard, Arlington. One roll of tape and a pair of tweezers.
Order 1044: Alan Turing, 78 High Street, Hampton. One bicycle chain and a gas mask.
"""


def versions(names: tuple[str, ...]) -> str:
    """A file under one name of its first function after the other; the last is only begun."""
    texts = [CODE.replace("total_price", name) for name in names]
    whole = "".join(f"# Version {i}\n{text}\n" for i, text in enumerate(texts[:-1], 1))
    return f"{whole}# Version {len(texts)}\ndef {names[-1]}("


def copies(titles: tuple[str, ...]) -> str:
    """The list under one title after the other; the last copy is only begun."""
    whole = "".join(f"Orders {title}:\n\n{LIST}\n" for title in titles[:-1])
    return f"{whole}Orders {titles[-1]}:\n\nOrder 1041:"


_A, _B = "total_price", "sum_price"
BEGUN = {
    "editing": (versions((_A, _B, _A, _B, _A, _B)), versions((_A, _B, _B, _A, _B, _A))),
    "extraction": (copies(("received", "confirmed", "packed", "shipped")), copies(("open", "paid", "sent", "closed"))),
}
"""To be gone on with."""
ASKED = {
    "request": (
        f"Write this code again exactly as it is, but name the first function sum_price:\n\n{CODE}",
        f"Copy all the orders below, each on a line of its own, without changing a word:\n\n{LIST}",
    ),
    "prose": (
        "Tell me a long story about a lighthouse keeper who finds a letter in a bottle.",
        "Explain to a child why the sky is blue and sunsets are red.",
        "Write an essay on what a city loses when its old trees are cut down.",
        "Describe a walk through a market in the morning, with all that one can smell and hear.",
    ),
}
"""Said to the model in a conversation."""
TASKS = (*BEGUN, *ASKED)


@dataclass
class Run:
    """One batch of answers."""

    tokens: int = 0
    seconds: float = 0.0
    accepted: int = 0
    rejected: int = 0


@dataclass
class Bench:
    """One engine; `measure` runs a batch of a task's prompts through it."""

    engine: Engine
    opened: Opened
    serial: Any = field(default_factory=count)

    def requests(self, task: str, batch: int, temperature: float, tokens: int, first: int = 0) -> list[GenerateRequest]:
        """A batch under a tenant of its own, so that no run finds another's outputs; `first` is its first seed."""
        number, tokenizer = next(self.serial), self.opened.tokenizer
        if task in BEGUN:
            prompts = [tokenizer.encode_prompt(text) for text in BEGUN[task]]
        else:
            prompts = [tokenizer.encode_chat([{"role": "user", "content": text}]) for text in ASKED[task]]
        return [
            validate(
                prompts[(first + i) % len(prompts)],
                SamplingParams(temperature=temperature, seed=first + i, max_tokens=tokens, ignore_eos=True),
                self.engine.capacity,
                request_id=f"{number}-{i}",
                arrival=time.monotonic(),
                tenant=str(number),
            )
            for i in range(batch)
        ]

    def measure(self, task: str, batch: int, temperature: float, tokens: int, first: int) -> Run:
        """Answers to a batch of prompts, from when all have a token to the first that ends."""
        run, waiting, began, before, made = Run(), batch, 0.0, 0, 0
        met: set[str] = set()
        for event in iterate(self.engine, self.requests(task, batch, temperature, tokens, first)):
            made += len(event.token_ids)
            if event.request_id not in met:
                met.add(event.request_id)
                if len(met) == batch:
                    began, before = time.perf_counter(), made
            if event.finish is not None:
                run.accepted += event.accepted_drafts
                run.rejected += event.rejected_drafts
                waiting -= 1
                if waiting == batch - 1:
                    run.seconds, run.tokens = time.perf_counter() - began, made - before
        return run
