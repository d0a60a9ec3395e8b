"""The text that formats are measured on: prose of our own, questions, and long filler from a seeded generator.

Nothing here is anybody else's, so all of it ships: 8 kB of prose, 4 kB of questions. Knows no tokens.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import files

_DATA = files("pagoda.gate") / "data"

_NAMES = (
    "Anna", "Bruno", "Clara", "David", "Elif", "Farid", "Greta", "Hugo", "Ines", "Jonas", "Kirsten", "Lena", "Milan",
    "Nora", "Otto", "Petra", "Rosa", "Simon",
)  # fmt: skip
_PLACES = (
    "the station", "the library", "the old mill", "the market", "the museum", "the bakery on the corner",
    "the swimming pool", "the town hall", "the garden behind the school", "the bridge", "the workshop",
    "the post office",
)  # fmt: skip
_THINGS = (
    "a red umbrella", "a box of apples", "two letters", "an old map", "a bag of nails", "a broken chair",
    "a pair of boots", "a basket of plums", "a violin", "a jar of honey", "a roll of wire", "three candles",
)  # fmt: skip
_TIMES = (
    "In the morning", "At noon", "Late in the afternoon", "On Monday", "On Saturday", "A week later", "Before the rain",
    "After supper", "Last winter", "Early in May", "That evening", "The next day",
)  # fmt: skip
_REASONS = (
    "because the bus was late", "although nobody had asked", "since the shop was closed", "because it was cold outside",
    "while the others were asleep", "because the price had gone up", "as soon as the rain stopped", "without a word",
)  # fmt: skip
_SHAPES = (
    "{time} {name} carried {thing} to {place} {reason}.",
    "{name} asked {other} to wait at {place}, and {other} waited for {count} minutes.",
    "There were {count} people at {place}, and only one of them, {name}, had {thing}.",
    "{time} {name} sold {thing} for {count} coins and spent half of them at {place}.",
    "{name} wrote to {other}: the road past {place} is closed, so come by the river.",
    "Nobody at {place} knew that {name} had lost {thing} {reason}.",
    '"I will be at {place}," said {name}, "{reason}."',
    "{time} the door of {place} stood open {reason}, and {name} went in with {thing}.",
    "{other} is {count} years old and lives near {place}; {name} is a little younger.",
    "{time} it took {name} {count} steps to get from {place} to the gate.",
    "{name} gave {thing} to {other}, who left it at {place} {reason}.",
    "{time} {other} counted the windows of {place} and came to {count}, while {name} watched.",
)

HOLDERS = (
    "lighthouse", "castle", "hospital", "theatre", "harbour", "monastery", "airport", "orchard", "observatory",
    "factory", "vineyard", "cathedral",
)  # fmt: skip
"""Who has a secret number: neither prose nor filler speaks of any."""


@dataclass(frozen=True, slots=True)
class Question:
    """One with choices, the first of which is right."""

    text: str
    choices: tuple[str, ...]


def prose() -> str:
    """A dozen short pieces: tales, a recipe, letters, an explanation, some code."""
    return (_DATA / "prose.txt").read_text("utf-8")


def questions() -> list[Question]:
    """Simple ones, of general knowledge."""
    return [Question(text, tuple(choices)) for text, choices in json.loads((_DATA / "questions.json").read_bytes())]


def filler(seed: int) -> Iterator[str]:
    """Paragraphs without end, the same for the same seed on every machine."""
    draw = random.Random(seed)
    while True:
        sentences = []
        for _ in range(draw.randrange(4, 8)):
            name, other = draw.sample(_NAMES, 2)
            sentences.append(
                draw.choice(_SHAPES).format(
                    name=name,
                    other=other,
                    place=draw.choice(_PLACES),
                    thing=draw.choice(_THINGS),
                    time=draw.choice(_TIMES),
                    reason=draw.choice(_REASONS),
                    count=draw.randrange(3, 90),
                )
            )
        yield " ".join(sentences) + "\n\n"


@dataclass(frozen=True, slots=True)
class Needle:
    """A fact hidden in a long text, and how it is asked for."""

    holder: str
    number: str

    @property
    def fact(self) -> str:
        """As it stands in the text."""
        return f"Remember this: the secret number of the {self.holder} is {self.number}.\n\n"

    @property
    def question(self) -> str:
        """The text up to the number."""
        asked = f"the secret number of the {self.holder}"
        return f"\n\nQuestion: What is {asked}?\nAnswer: T{asked[1:]} is"


def needles(seed: int, count: int) -> list[Needle]:
    """At most one for each of `HOLDERS`."""
    draw = random.Random(seed)
    return [Needle(holder, str(draw.randrange(10000, 100000))) for holder in draw.sample(HOLDERS, count)]


EXAMPLES = """The following questions have short answers.

Question: What is the capital of Germany?
Answer: Berlin

Question: How many wheels does a bicycle have?
Answer: two

Question: What is the opposite of big?
Answer: small

Question: Which animal gives us milk?
Answer: cow

Question: What is three plus one?
Answer: four

"""
"""What comes before every question."""
