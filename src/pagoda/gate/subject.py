"""What is measured: a model's weights with one KV format, run straight on the backend.

`Subject` computes one text whose pages stay, and then any number of short continuations of it, which share those pages.
Knows steps, pages and logits; knows nothing of what the tokens mean.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from copy import copy
from dataclasses import replace

import numpy as np

from pagoda.backends.cpu import CpuBackend, rope_table
from pagoda.backends.ops import Draw, Floats, Ints, KVStore, Ops, Program, Step, Value
from pagoda.config import ModelConfig
from pagoda.models import Source, build, read_config
from pagoda.models.decoder import Decoder
from pagoda.runner.runner import whole_model

PAGE = 16
ROWS = 512
"""Most rows of one step."""
LOGIT_BYTES = 2**26
"""Most bytes of logits that one step hands out."""
SPARE = 2 * ROWS // PAGE
"""Pages for continuations: rows of a step in pages that may be all but empty."""
DECODE_COST = 4
"""A row of a decoding step takes about as long as so many of a prompt: for the progress bar alone."""

Tick = Callable[[int], None]
"""Is told how many rows were computed."""


class Net:
    """A model's weights, packed; several subjects may share them.

    Raises:
        ModelFileError, UnsupportedModel: the file.
        MemoryLimit: no room for its weights.
    """

    def __init__(self, source: Source, positions: int, activations: str = "int16", threads: int | None = None) -> None:
        config = read_config(source)
        # Of two sets of rotary factors, a server takes the one for the model's whole context: so is it measured.
        self.positions = config.context if config.variant(config.context) else positions
        self.backend = CpuBackend(activations, threads)
        self.model: Decoder = build(source, config, self.backend.weights, rope_table, self.positions)
        self.program: Program = self.backend.program(self.compute)

    def compute(self, ops: Ops) -> None:
        """Token ids to logits."""
        whole_model(self.model, ops)

    def with_layers(self, other: Net, layers: Collection[int]) -> Net:
        """This net, but for some layers, which are another's of the same model: nothing is packed again."""
        mixed = copy(self)
        mixed.program = self.backend.program(lambda ops: whole_model(_Mixed(self.model, other.model, layers), ops))
        return mixed


class _Mixed:
    """A model some of whose layers are another's."""

    def __init__(self, model: Decoder, other: Decoder, layers: Collection[int]) -> None:
        self.layers, self.groups, self.vocabulary = model.layers, model.groups, model.vocabulary
        self._model, self._other, self._chosen = model, other, layers

    def enter(self, ops: Ops) -> Value:
        return self._model.enter(ops)

    def layer(self, ops: Ops, i: int, x: Value) -> Value:
        return (self._other if i in self._chosen else self._model).layer(ops, i, x)

    def leave(self, ops: Ops, x: Value) -> Value:
        return self._model.leave(ops, x)


class Subject:
    """One model in one KV format, with pages for one text at a time.

    Args:
        net: its weights.
        config: how keys and values are stored, among others.
        fingerprint: of all that its outputs hang on.
        tick: is told of each step.
    """

    def __init__(self, net: Net, config: ModelConfig, fingerprint: str, tick: Tick = lambda _: None) -> None:
        self.net, self.config, self.fingerprint, self.tick = net, config, fingerprint, tick
        self._kv: KVStore | None = None
        self._past = 0

    @property
    def vocabulary(self) -> int:
        """Tokens of the model."""
        return self.net.model.vocabulary

    def begin(self, tokens: int, spare: int = SPARE) -> None:
        """Commit pages for a text of so many tokens and for continuations; pages of the text before are let go.

        Raises:
            MemoryLimit: they cannot be had.
        """
        self._kv, self._past = None, 0
        pages = -(-tokens // PAGE) + spare
        groups = self.net.model.groups
        self._kv = self.net.backend.kv_store(
            groups, [pages] * len(groups), PAGE, self.net.model.kv_formats(self.config.kv_format)
        )

    def end(self) -> None:
        """Let the pages go."""
        self._kv, self._past = None, 0

    def feed(self, ids: Sequence[int]) -> None:
        """Go on with the text; no logits are computed."""
        for start in range(0, len(ids), ROWS):
            self._run(self._text(ids[start : start + ROWS], sample=False), False)

    def read(self, ids: Sequence[int]) -> Floats:
        """Go on with the text: logits of every row, [tokens, V]."""
        return self._run(self._text(ids, sample=True), True)

    def ask(self, tails: Sequence[Sequence[int]], wanted: Sequence[int]) -> Iterator[Floats]:
        """Continue the text in several ways, each from its pages on: for each the logits of its last `wanted` rows.

        The text must fill whole pages.
        """
        for first, last in _packed(tails):
            chosen, asked = tails[first:last], wanted[first:last]
            logits = self._run(self._forks(chosen, asked), True)
            yield from np.split(logits, np.cumsum(asked)[:-1])

    def draw(self, first: int, count: int, tokens: int, temperature: float) -> list[list[int]]:
        """`count` continuations that begin with the token `first`, sampled at a temperature, the first one greedily.

        Seeds are 1, 2 and so on; `begin` must have been told of `spare_for` them.
        """
        slots = self.net.backend.slots()
        table, numbers = self._tables([tokens] * count), np.arange(count, dtype=np.int32)
        outputs: list[list[int]] = [[] for _ in range(count)]
        draws = [Draw(i, i + 1, 0, 0, temperature if i else 0.0, 1.0, 0.0, 1.0, 0.0, 0.0, 0, -1) for i in range(count)]
        for t in range(tokens):
            step = Step(
                ids=np.full(count, -1 if t else first, np.int32),
                positions=np.full(count, self._past + t, np.int32),
                sequences=numbers,
                tables=(table,) * len(self.net.model.groups),
                sampled=numbers,
                slots=numbers,
                starts=() if t else tuple((i, np.zeros(0, np.int32)) for i in range(count)),
            )
            at = [replace(d, position=self._past + t + 1) for d in draws]
            for output, token in zip(outputs, self._submit(step, slots, at), strict=True):
                output.append(token)
            self.tick(count * DECODE_COST)
        return outputs

    def _submit(self, step: Step, slots: object, draws: Sequence[Draw]) -> tuple[int, ...]:
        assert self._kv is not None, "begin comes first"
        return self.net.program.submit(self._kv, step, slots, draws).wait().tokens

    def _text(self, ids: Sequence[int], sample: bool) -> Step:
        start, count = self._past, len(ids)
        self._past = end = start + count
        table = np.arange(-(-end // PAGE), dtype=np.int32)[None]
        return Step(
            ids=np.array(ids, np.int32),
            positions=np.arange(start, end, dtype=np.int32),
            sequences=np.zeros(count, np.int32),
            tables=(table,) * len(self.net.model.groups),
            sampled=np.arange(count if sample else 0, dtype=np.int32),
        )

    def _forks(self, tails: Sequence[Sequence[int]], wanted: Sequence[int]) -> Step:
        counts = [len(tail) for tail in tails]
        ends = np.cumsum(counts)
        return Step(
            ids=np.array([token for tail in tails for token in tail], np.int32),
            positions=np.concatenate([np.arange(self._past, self._past + n, dtype=np.int32) for n in counts]),
            sequences=np.repeat(np.arange(len(tails), dtype=np.int32), counts),
            tables=(self._tables(counts),) * len(self.net.model.groups),
            sampled=np.concatenate(
                [np.arange(end - n, end, dtype=np.int32) for end, n in zip(ends, wanted, strict=True)]
            ),
        )

    def _tables(self, counts: Sequence[int]) -> Ints:
        """The text's pages, then for each continuation pages of its own."""
        assert self._past % PAGE == 0, f"a text of {self._past} tokens does not end with a page"
        shared = self._past // PAGE
        own = -(-max(counts) // PAGE)
        first = shared + own * np.arange(len(counts), dtype=np.int32)[:, None]
        mine = first + np.arange(own, dtype=np.int32)
        return np.concatenate([np.tile(np.arange(shared, dtype=np.int32), (len(counts), 1)), mine], axis=1)

    def _run(self, step: Step, outputs: bool) -> Floats:
        assert self._kv is not None, "begin comes first"
        out = self.net.program.submit(self._kv, step, None, (), outputs).wait().outputs
        self.tick(len(step.ids))
        return out["logits"] if outputs else np.empty((0, self.vocabulary), np.float32)

    def rows(self) -> int:
        """Most rows whose logits one step should hand out."""
        return max(PAGE, min(ROWS, LOGIT_BYTES // (4 * self.vocabulary)) // PAGE * PAGE)


def spare_for(count: int, tokens: int) -> int:
    """Pages for so many continuations of so many tokens."""
    return max(SPARE, count * -(-tokens // PAGE))


def _packed(tails: Sequence[Sequence[int]]) -> Iterator[tuple[int, int]]:
    """Cut a list of continuations so that each part fits one step and the spare pages."""
    first = longest = rows = 0
    for i, tail in enumerate(tails):
        pages = max(longest, -(-len(tail) // PAGE))
        if i > first and (rows + len(tail) > ROWS or pages * (i + 1 - first) > SPARE):
            yield first, i
            first, longest, rows = i, 0, 0
        longest, rows = max(longest, -(-len(tail) // PAGE)), rows + len(tail)
    if tails:
        yield first, len(tails)
