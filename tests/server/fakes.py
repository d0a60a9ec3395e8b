"""A tokenizer of bytes and an engine that echoes: deterministic, fast, and held or killed at will.

The answer to a prompt is `[choice]`, the prompt itself, then the end of turn; so every test knows what to expect.
"""

from __future__ import annotations

import codecs
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace

from pagoda.errors import EngineDied
from pagoda.plan import Capacity, Chunk, Sampled, SequenceStart, StepPlan, StepResult
from pagoda.text.detokenizer import Detokenizer
from pagoda.text.messages import check_text, normalize
from pagoda.types import FinishReason, GenerateRequest, Slo, Timings, TokenEvent, TokenLogprob

END = 256
VOCABULARY = 260


class ByteTokenizer:
    """One token for each byte, and an end of turn."""

    vocabulary = VOCABULARY
    stop_ids = frozenset({END})
    has_chat_template = True

    def encode_prompt(self, text: str) -> tuple[int, ...]:
        return tuple(check_text(text, "prompt").encode())

    def encode_chat(
        self, messages: Sequence[Mapping[str, object]], *, add_generation_prompt: bool = True
    ) -> tuple[int, ...]:
        chat = normalize(messages)
        return self.encode_prompt("".join(f"{each['role']}: {each['content']}\n" for each in chat))

    def token_bytes(self, token_id: int) -> bytes:
        return bytes([token_id]) if token_id < 256 else b"<end>"

    def detokenizer(self) -> Detokenizer:
        return Detokenizer(lambda token_id: self.token_bytes(token_id) if token_id < 256 else b"")

    def token_text(self, token_id: int) -> str:
        return self.token_bytes(token_id).decode(errors="replace")


def script(request: GenerateRequest | SequenceStart, choice: int) -> list[int]:
    """The tokens that an echo gives: `[choice]` and the prompt, over and over if the end of turn is ignored."""
    tokens = [*f"[{choice}]".encode(), *request.prompt]
    if request.params.ignore_eos:
        tokens = tokens * (request.params.max_tokens // len(tokens) + 1)
    return [*tokens, END]


class EchoRunner:
    """A machine room that echoes, for the real engine. `hold` stops the steps, `fail` breaks them."""

    def __init__(self, pages: int = 64, page_size: int = 16, max_model_len: int = 512) -> None:
        self.capacity = Capacity((pages,), page_size, max_model_len, VOCABULARY, "fp_echo")
        self.scripts: dict[int, tuple[SequenceStart, list[int]]] = {}
        self.fault: Exception | None = None
        self.step_s = 0.0
        self._go = threading.Event()
        self._go.set()

    def hold(self) -> None:
        self._go.clear()

    def release(self) -> None:
        self._go.set()

    def submit(self, plan: StepPlan) -> StepPlan:
        for start in plan.starts:
            self.scripts[start.sequence] = (start, script(start, start.choice))
        return plan

    def finish(self, plan: StepPlan) -> StepResult:
        assert self._go.wait(30), "held for ever"
        time.sleep(self.step_s)
        if self.fault is not None:
            raise self.fault
        sampled = [self._sample(chunk) for chunk in plan.chunks if chunk.samples]
        for sequence in plan.ends:
            del self.scripts[sequence]
        return StepResult(plan.number, tuple(sampled), 0.001)

    def _sample(self, chunk: Chunk) -> Sampled:
        start, tokens = self.scripts[chunk.sequence]
        token, wanted = tokens[min(chunk.end - len(start.prompt), len(tokens) - 1)], start.params.logprobs
        return Sampled(chunk.sequence, token, None if wanted is None else logprob_of(token, wanted))

    def close(self) -> None:
        self.release()


@dataclass
class Sequence_:
    request: GenerateRequest
    index: int
    tell: Callable[[TokenEvent], None]
    plan: list[int]
    made: int = 0
    text: str = ""
    sent: int = 0
    first: float = 0.0
    decoder: codecs.IncrementalDecoder = field(default_factory=lambda: codecs.getincrementaldecoder("utf-8")("replace"))


class EchoEngine:
    """Serves `slots` sequences at a time, a token of each in a step; `hold` stops the steps."""

    def __init__(self, slots: int = 64, max_model_len: int = 512, step_s: float = 0.0) -> None:
        self.capacity = Capacity((64,), 16, max_model_len, VOCABULARY, "fp_echo")
        self.slots, self.step_s = slots, step_s
        self.running: list[Sequence_] = []
        self.waiting: list[Sequence_] = []
        self.cancelled: list[str] = []
        self.dead = ""
        self.refuse: Exception | None = None
        self._go = threading.Event()
        self._go.set()
        self._lock = threading.Lock()
        self._closing = False
        self._thread = threading.Thread(target=self._loop, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def disk_report(self) -> None:
        return None

    def refuse_early(self, tenant: str, slo: Slo, arrival: float) -> None:
        """It knows only when it has the prompt."""

    def hold(self) -> None:
        self._go.clear()

    def release(self) -> None:
        self._go.set()

    def submit(
        self,
        request: GenerateRequest,
        sink: Callable[[TokenEvent], None],
        wake: Callable[[], None] = lambda: None,
    ) -> None:
        def tell(event: TokenEvent) -> None:
            sink(event)
            wake()

        if self.refuse:
            raise self.refuse
        if self.dead:
            raise EngineDied(self.dead)
        with self._lock:
            for index in range(request.params.n):
                self.waiting.append(Sequence_(request, index, tell, script(request, index)))

    def cancel(self, request_id: str) -> None:
        with self._lock:
            self.cancelled.append(request_id)
            for each in [s for s in self.running + self.waiting if s.request.id == request_id]:
                self._finish(each, FinishReason.CANCELLED)

    def health(self) -> SimpleNamespace:
        with self._lock:
            return SimpleNamespace(
                alive=not self.dead, reason=self.dead, running=len(self.running), waiting=len(self.waiting)
            )

    def kill(self, reason: str = "the test killed it") -> None:
        with self._lock:
            self.dead = reason
            for each in self.running + self.waiting:
                self._finish(each, FinishReason.ERROR, EngineDied(reason))

    def close(self, drain_s: float = 0.0) -> None:
        self.refuse = self.refuse or EngineDied("the engine was closed")
        until = time.monotonic() + drain_s
        while (self.running or self.waiting) and time.monotonic() < until:
            time.sleep(0.01)
        self._closing = True
        self.kill("the engine was closed")
        self.release()
        if self._thread.is_alive():
            self._thread.join()

    def check(self) -> None:
        with self._lock:
            assert len(self.running) <= self.slots
            assert not {id(s) for s in self.running} & {id(s) for s in self.waiting}

    def _loop(self) -> None:
        while not self._closing:
            self._go.wait(1)
            with self._lock:
                if self._go.is_set() and not self._closing:
                    self._step()
            time.sleep(self.step_s or (0.0 if self.running else 0.002))

    def _step(self) -> None:
        while self.waiting and len(self.running) < self.slots:
            self.running.append(self.waiting.pop(0))
        for each in list(self.running):
            self._token(each)

    def _token(self, seq: Sequence_) -> None:
        token, params = seq.plan[seq.made], seq.request.params
        seq.made += 1
        seq.first = seq.first or time.monotonic()
        seq.text += "" if token == END else seq.decoder.decode(bytes([token]))
        reason = FinishReason.STOP if token == END else None
        if reason is None and seq.made == params.max_tokens:
            reason = FinishReason.LENGTH
        for stop in params.stop:
            if (at := seq.text.find(stop)) >= 0:
                seq.text, reason = seq.text[:at], FinishReason.STOP
        held = 0 if reason else max((len(stop) - 1 for stop in params.stop), default=0)
        certain = max(seq.sent, len(seq.text) - held)
        text, seq.sent = seq.text[seq.sent : certain], certain
        logprobs = () if params.logprobs is None else (logprob_of(token, params.logprobs),)
        event = TokenEvent(seq.request.id, seq.index, (token,), text, logprobs)
        if reason is None:
            seq.tell(event)
        else:
            self._finish(seq, reason, event=event)

    def _finish(
        self,
        seq: Sequence_,
        reason: FinishReason,
        error: EngineDied | None = None,
        event: TokenEvent | None = None,
    ) -> None:
        (self.running if seq in self.running else self.waiting).remove(seq)
        arrival, now = seq.request.arrival, time.monotonic()
        event = event or TokenEvent(seq.request.id, seq.index)
        seq.tell(
            TokenEvent(
                event.request_id,
                event.index,
                event.token_ids,
                event.text,
                event.logprobs,
                finish=reason,
                prompt_tokens=len(seq.request.prompt),
                completion_tokens=seq.made,
                cached_tokens=min(8, len(seq.request.prompt) - 1),
                timings=Timings(0.0, max(0.0, seq.first - arrival), now - arrival),
                error=error,
            )
        )


def logprob_of(token: int, top: int) -> TokenLogprob:
    """A made-up distribution: the chosen token first, then its neighbours."""
    likeliest = tuple(((token + k) % 256 if token < 256 else token - k, -0.25 * (k + 1)) for k in range(top))
    return TokenLogprob(token, -0.25, likeliest)
