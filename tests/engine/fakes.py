"""A runner and a tokenizer small enough to be compared with brute force, and strict about every promise of a plan."""

from __future__ import annotations

import codecs
import json
import threading
from collections import deque
from dataclasses import dataclass, field
from typing import Any
from zlib import crc32

from pagoda.engine import validate
from pagoda.engine.beams import BeamSearch
from pagoda.engine.speculation.drafter import Guess
from pagoda.plan import LAST, Capacity, Sampled, StepPlan, StepResult
from pagoda.types import FinishReason, SamplingParams, Slo, TokenLogprob
from trees import TreeDrafter, lines_of

TOKENS = (b"a", b"b", b"ab", b"\xc3", b"\xa9", b"", b"c ", "é".encode(), b"\xff", b"ba")
STOP = len(TOKENS)
VOCABULARY = STOP + 1


class FakeDetokenizer:
    def __init__(self):
        self.decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, ids):
        return self.decoder.decode(b"".join(TOKENS[i] for i in ids if i != STOP))

    def flush(self):
        return self.decoder.decode(b"", final=True)


class FakeTokenizer:
    stop_ids = frozenset({STOP})

    def detokenizer(self):
        return FakeDetokenizer()


def next_token(tokens, params, choice):
    """The fake model: a function of all tokens so far, the seed and the choice. A stop token about once in twelve."""
    key = repr((tuple(tokens), params.seed, choice)).encode()
    draw = crc32(key) % 1009
    return STOP if draw % 12 == 0 else draw % STOP


def likeliest(tokens, count):
    """The fake model's continuations, as beam search wants them: a function of all tokens so far."""
    logprobs = [-(crc32(repr((tuple(tokens), token)).encode()) % 1009) / 100 for token in range(VOCABULARY)]
    return tuple(sorted(enumerate(logprobs), key=lambda pair: (-pair[1], pair[0]))[:count])


def searched(prompt, params):
    """Beam search without sequences, pages and steps: [(tokens, text, reason)], the best first."""
    stops = set(params.stop_token_ids) | (set() if params.ignore_eos else {STOP})
    keep = params.beams * max(2, 1 + len(stops))
    search = BeamSearch(params.beams, params.max_tokens, keep, params.length_penalty, params.early_stopping)
    while not search.done:
        for beam in search.beams:
            search.offer(beam.slot, likeliest((*prompt, *beam.tokens), keep))
        search.advance(lambda tokens: spelled(tokens, params.stop, stops)[1])
        search.check()
    return [
        (list(line.tokens), spelled(line.tokens, params.stop, stops, final=True)[0],
         FinishReason.STOP if spelled(line.tokens, params.stop, stops, final=True)[1] else FinishReason.LENGTH)
        for line in search.hypotheses[: params.n]
    ]  # fmt: skip


def spelled(tokens, stop_strings, stops, final=False):
    """(text up to where it ends, whether it ends there)."""
    over = tokens[-1] in stops
    raw = b"".join(TOKENS[i] for i in tokens if i != STOP)
    text = codecs.getincrementaldecoder("utf-8")("replace").decode(raw, final=over or final)
    found = [(text.find(s) + len(s), -len(s)) for s in stop_strings if s in text]
    return (text[: sum(min(found))], True) if found and not over else (text, over)


def expected(prompt, params, choice):
    """Brute force, one sequence alone: (tokens, text, reason)."""
    stops = set(params.stop_token_ids) | (set() if params.ignore_eos else {STOP})
    output: list[int] = []
    while True:
        token = next_token((*prompt, *output), params, choice)
        output.append(token)
        shown = output[:-1] if token in stops else output
        raw = b"".join(TOKENS[i] for i in shown if i != STOP)
        ended = token in stops or len(output) == params.max_tokens
        text = codecs.getincrementaldecoder("utf-8")("replace").decode(raw, final=ended)
        found = [(text.find(s) + len(s), -len(s)) for s in params.stop if s in text]
        if found:
            end, size = min(found)
            return output, text[: end + size], FinishReason.STOP
        if token in stops:
            return output, text, FinishReason.STOP
        if ended:
            return output, text, FinishReason.LENGTH


class Oracle:
    """A drafter that knows the fake model, and is wrong at some places."""

    name = "oracle"
    seconds = 0.0
    blind = False

    def __init__(self, wrong=3):
        self.wrong = wrong
        self.asked = self.right = 0

    def look(self, sequences):
        pass

    def guess(self, sequence, most):
        params, tokens = sequence.state.request.params, list(sequence.tokens(0, sequence.values))
        for _ in range(sequence.pending + most):
            tokens.append(next_token(tokens, params, sequence.choice))
        guessed = tokens[sequence.known :]
        for i, token in enumerate(guessed):
            if (sequence.known + i) % self.wrong == self.wrong - 1:
                guessed[i] = (token + 1) % VOCABULARY
        return Guess(tuple(guessed), (0.5,) * len(guessed))

    def verified(self, sequence, asked, right):
        assert 0 <= right <= asked
        self.asked += asked
        self.right += right

    def forget(self, sequence):
        pass

    def check(self):
        pass


def grove():
    """A drafter of trees that knows the fake model: random ones, the same for each engine."""

    def truth(sequence, most):
        params, tokens = sequence.state.request.params, list(sequence.tokens(0, sequence.values))
        for _ in range(sequence.pending + most):
            tokens.append(next_token(tokens, params, sequence.choice))
        return tokens[sequence.known :]

    return TreeDrafter(truth, VOCABULARY)


@dataclass
class Line:
    """What the fake runner remembers of a sequence."""

    prompt: tuple[int, ...]
    params: SamplingParams
    choice: int
    candidates: int = -1
    last: int | None = None
    computed: int = 0


@dataclass
class FakeRunner:
    """Each KV slot holds the whole prefix up to its position, so that a wrong page, a page reused too early, or a
    missing copy gives a wrong prefix, which is seen at once. Plans wait until they are finished, as on another thread.
    """

    capacity: Capacity
    chunk: int = 512
    max_num_seqs: int = 64
    steps_in_flight: int = 3
    lines: dict[int, Line] = field(default_factory=dict)
    gone: set[int] = field(default_factory=set)
    met: set[int] = field(default_factory=set)
    slots: dict[tuple[int, int, int], tuple[int, ...]] = field(default_factory=dict)
    plans: list[StepPlan] = field(default_factory=list)
    flights: deque[StepPlan] = field(default_factory=deque)
    rows: int = 0
    shelf: Any = None
    """Where saved pages go and loaded ones come from."""

    def submit(self, plan):
        assert plan.number == len(self.plans) + 1
        assert plan.chunks or plan.saves or plan.loads
        assert plan.rows <= self.chunk
        assert len(plan.chunks) <= self.max_num_seqs
        assert len({chunk.sequence for chunk in plan.chunks}) == len(plan.chunks), "two chunks of one sequence"
        assert not set(plan.ends) & {chunk.sequence for chunk in plan.chunks}
        assert not {c.sequence for flight in self.flights for c in flight.chunks if c.drafts} & {
            c.sequence for c in plan.chunks
        }, "a sequence goes on before it is known how many drafts were right"
        self.plans.append(plan)
        self.flights.append(plan)
        assert len(self.flights) <= self.steps_in_flight
        return plan

    def finish(self, handle):
        assert self.flights.popleft() is handle, "plans are finished in order"
        return self.execute(handle)

    def execute(self, plan):
        for start in plan.starts:
            assert start.sequence not in self.lines
            assert start.sequence not in self.gone
            self.lines[start.sequence] = Line(start.prompt, start.params, start.choice, start.candidates)
        self.move(plan)
        for copy in plan.copies:
            for slot in range(copy.slots):
                self.slots[copy.group, copy.target, slot] = self.slots[copy.group, copy.source, slot]
        written: set[tuple[int, int]] = set()
        spelled = [self.write(chunk, written) for chunk in plan.chunks]
        sampled = []
        for chunk, paths in zip(plan.chunks, spelled, strict=True):
            line = self.lines[chunk.sequence]
            for tables, prefix in paths:
                for position in range(len(prefix)):
                    assert self.read(tables, position) == prefix[: position + 1], "a slot was overwritten"
                assert prefix[: len(line.prompt)] == line.prompt[: len(prefix)], "another sequence's prompt"
            prefix = paths[0][1][: chunk.end]
            while chunk.samples:
                line.last = next_token(prefix, line.params, line.choice)
                sampled.append(Sampled(chunk.sequence, line.last, self.logprob(line, prefix)))
                prefix += (line.last,)
                if not any(path[: len(prefix)] == prefix for _, path in paths):
                    break
                line.computed = len(prefix)
        for end in plan.ends:
            del self.lines[end]
            self.gone.add(end)
        self.rows += plan.rows
        return StepResult(plan.number, tuple(sampled), 0.001)

    def write(self, chunk, written):
        """Write all paths of a chunk: of each, its page tables and the whole prefix that their slots hold."""
        size, line, ids = self.capacity.page_size, self.lines[chunk.sequence], self.resolve(chunk)
        before = self.read(chunk.pages, chunk.start - 1) if chunk.start else ()
        going_on = chunk.start <= line.computed or chunk.sequence not in self.met
        assert going_on or line.params.beams, "positions are contiguous, but where a beam took another's place"
        line.computed = chunk.end
        self.met.add(chunk.sequence)
        paths, mine = [], {}
        for tables, rows in lines_of(chunk):
            prefix = before + tuple(ids[row] for row in rows)
            assert len(tables) == len(self.capacity.pages)
            for group, table in enumerate(tables):
                assert len(table) == -(-len(prefix) // size), "pages cover the positions, and no more"
                assert len(set(table)) == len(table)
                assert all(0 <= page < self.capacity.pages[group] for page in table)
                for position in range(chunk.start, len(prefix)):
                    slot, value = (group, table[position // size], position % size), prefix[: position + 1]
                    assert mine.setdefault(slot, value) == value, "two paths write to one slot"
            paths.append((tables, prefix))
        pages = {slot[:2] for slot in mine}
        assert not pages & written, "two sequences write to one page"
        written |= pages
        self.slots.update(mine)
        return paths

    def move(self, plan):
        """First all saves, then all loads. A page's bytes spell out what its slots hold."""
        saved, size = [], self.capacity.page_size
        for move in plan.saves:
            slots = [[self.slots[g, page, slot] for slot in range(size)] for g, page in enumerate(move.pages)]
            saved.append(json.dumps(slots).encode().ljust(self.capacity.unit_bytes))
        targets = [(g, page) for move in plan.loads for g, page in enumerate(move.pages)]
        assert len(targets) == len(set(targets)), "a page is loaded twice"
        for move in plan.loads:
            for g, slots in enumerate(json.loads(bytes(self.shelf.take(move.ticket)))):
                for slot, prefix in enumerate(slots):
                    self.slots[g, move.pages[g], slot] = tuple(prefix)
        for move, data in zip(plan.saves, saved, strict=True):
            assert len(data) == self.capacity.unit_bytes
            self.shelf.put(move.ticket, memoryview(data))
        if plan.loads:
            self.shelf.loaded(len(plan.loads), 1e-6)

    def logprob(self, line, prefix):
        asked = -1 if line.params.logprobs is None else line.params.logprobs
        count = max(asked, line.candidates)
        if count < 0:
            return None
        return TokenLogprob(line.last, dict(likeliest(prefix, VOCABULARY))[line.last], likeliest(prefix, count))

    def resolve(self, chunk):
        if LAST not in chunk.tokens:
            return chunk.tokens
        assert chunk.tokens.index(LAST) == 0
        assert len(chunk.tokens) == 1 + chunk.drafts, "LAST stands alone or before drafts"
        return (self.lines[chunk.sequence].last, *chunk.tokens[1:])

    def read(self, pages, position):
        """The prefix that the slot of a position holds: the same in every group."""
        size = self.capacity.page_size
        found = {self.slots[g, table[position // size], position % size] for g, table in enumerate(pages)}
        assert len(found) == 1
        return found.pop()


class GatedRunner(FakeRunner):
    """Finishes a plan only when `gate` is open; raises what is put in `fault`."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.gate = threading.Event()
        self.waits = threading.Event()
        self.fault: Exception | None = None

    def finish(self, handle):
        self.waits.set()
        assert self.gate.wait(20), "the test forgot to open the gate"
        if self.fault is not None:
            raise self.fault
        return super().finish(handle)


def capacity(pages=(64,), page_size=4, max_model_len=64):
    return Capacity(tuple(pages), page_size, max_model_len, VOCABULARY, "fake", 4096, "fake")


def request(
    capacity, prompt=(1, 2, 3), request_id="r", arrival=0.0, tenant="", slo=None, priority=0, speculate=True, **params
):
    params.setdefault("seed", 0)
    return validate(
        prompt, SamplingParams(**params), capacity, request_id=request_id, arrival=arrival, tenant=tenant,
        slo=slo or Slo(), priority=priority, speculate=speculate,
    )  # fmt: skip
