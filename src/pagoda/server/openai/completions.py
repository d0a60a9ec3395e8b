"""`POST /v1/completions`: its body, and its answers.

Knows OpenAI's plain completion format; several prompts in one body become several requests of the engine.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType
from starlette.requests import Request
from starlette.responses import Response

from pagoda.completion import Completion, Usage
from pagoda.errors import InvalidRequest
from pagoda.server.desk import Desk
from pagoda.server.openai.answer import Call, answer
from pagoda.server.openai.fields import NEUTRAL_COMPLETIONS, Count, SharedFields, convert, decode
from pagoda.server.openai.logprobs import CompletionLogprobs, OffsetLogprobs
from pagoda.server.openai.response import Explain, Head, UsageCount, WireUsage, finish_reason, wire_usage
from pagoda.types import MAX_CHOICES, SamplingParams, TokenEvent

DEFAULT_MAX_TOKENS = 16
"""OpenAI's default for this endpoint."""

Prompt = str | list[int]


class CompletionFields(SharedFields, kw_only=True):
    """The body."""

    prompt: str | list[Any]
    logprobs: int | None = None
    best_of: Count | None = None
    use_beam_search: bool | None = None
    length_penalty: float | None = None
    early_stopping: bool | Literal["never"] | None = None

    def choosing(self, params: SamplingParams) -> SamplingParams:
        """The parameters with what says how the answer is chosen: among several samples, or by beam search.

        Raises:
            InvalidRequest: a value is out of its range, or does not combine with another.
        """
        if self.use_beam_search:
            return replace(
                params,
                beams=params.n if self.best_of is None else self._width(self.best_of, params.n),
                length_penalty=1.0 if self.length_penalty is None else self.length_penalty,
                early_stopping=bool(self.early_stopping) if self.early_stopping != "never" else "never",
            )
        for name in ("length_penalty", "early_stopping"):
            if getattr(self, name) not in (None, getattr(params, name)):
                raise InvalidRequest(f"{name} is only for use_beam_search: true", name)
        return replace(params, best_of=self.best_of)

    def _width(self, best_of: int, n: int) -> int:
        """Of the beams, under the name that it has here."""
        if not n <= best_of <= MAX_CHOICES:
            message = f"best_of must be at least n, which is {n}, and at most {MAX_CHOICES}, got {best_of}"
            raise InvalidRequest(message, "best_of")
        return best_of


class CompletionChoice(msgspec.Struct):
    """`choices[]`, of a whole answer and of a chunk."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: str | None


class CompletionAnswer(msgspec.Struct):
    """The whole answer, and each chunk of a stream. `seed` is Pagoda's own: the seed used, given or drawn."""

    id: str
    created: int
    model: str
    choices: list[CompletionChoice]
    system_fingerprint: str
    seed: int
    usage: WireUsage | UnsetType | None = UNSET
    explain: Explain | UnsetType = UNSET
    object: str = "text_completion"


async def completions(request: Request) -> Response:
    """The route."""
    return await answer(request, parse)


def parse(body: bytes, desk: Desk) -> Call:
    """The body's meaning.

    Raises:
        InvalidRequest: `param` names the field.
    """
    fields = decode(body, CompletionFields, NEUTRAL_COMPLETIONS)
    prompts = _prompts(fields.prompt)
    max_tokens = DEFAULT_MAX_TOKENS if fields.max_tokens is None else fields.max_tokens
    # Beams draw nothing: there is nothing for the model's makers to recommend.
    defaults = SamplingParams() if fields.use_beam_search else desk.defaults
    params = fields.choosing(fields.sampling(defaults, fields.logprobs, max_tokens))
    if fields.stream and params.held_back:
        what = "use_beam_search" if params.beams else "best_of over n"
        raise InvalidRequest(
            f"{what} is answered as a whole: the best is known only at the end; leave stream out", "stream"
        )
    if (made := len(prompts) * params.sequences) > MAX_CHOICES:
        each = "n" if params.sequences == params.n else "best_of"
        raise InvalidRequest(f"prompts times {each} is {made}; the most is {MAX_CHOICES}", "prompt")

    def encode() -> list[Sequence[int]]:
        return [_encode(desk, each) if isinstance(each, str) else each for each in prompts]

    return Call(
        model=fields.model,
        params=params,
        stream=bool(fields.stream),
        include_usage=fields.include_usage,
        explain=bool(fields.explain),
        seed=fields.seed,
        slo=fields.targets,
        priority=fields.priority or 0,
        speculate=fields.speculation != "off",
        repetition_stop=fields.repetition_stop,
        prefix="cmpl",
        prompt_field="prompt",
        encode=encode,
        shape=partial(CompletionShape, params_n=params.n, logprobs=fields.logprobs is not None, fields=fields),
    )


def _encode(desk: Desk, text: str) -> Sequence[int]:
    desk.refuse_hopeless(len(text))
    return desk.tokenizer.encode_prompt(text)


def _prompts(raw: str | list[Any]) -> list[Prompt]:
    """A text, texts, token ids, or lists of token ids, as a list of prompts."""
    if isinstance(raw, str):
        return [raw]
    if not raw:
        raise InvalidRequest("prompt must not be an empty list", "prompt")
    if isinstance(raw[0], int):
        return [convert(raw, list[int], "prompt")]
    return convert(raw, list[str | list[int]], "prompt")


class CompletionShape:
    """Writes one answer; the choices of the prompt at `place` are numbered from `place * n`."""

    def __init__(self, head: Head, desk: Desk, *, params_n: int, logprobs: bool, fields: CompletionFields) -> None:
        self._head, self._tokenizer, self._n, self._logprobs = head, desk.tokenizer, params_n, logprobs
        self._usage: UnsetType | None = None if fields.include_usage else UNSET
        self._offsets: dict[int, OffsetLogprobs] = {}

    def _shaped(self, index: int, event: TokenEvent) -> CompletionLogprobs:
        return self._offsets.setdefault(index, OffsetLogprobs(self._tokenizer)).shape(event.logprobs)

    def chunks(self, place: int, event: TokenEvent) -> Iterable[CompletionAnswer]:
        """At most two: what is new, and the end. An event with no news for the client gives none."""
        index = place * self._n + event.index
        told = self._logprobs and event.logprobs
        if event.text or told:
            logprobs = self._shaped(index, event) if told else None
            yield self._answer([CompletionChoice(index, event.text, logprobs, None)], self._usage)
        if event.finish is not None:
            yield self._answer([CompletionChoice(index, "", None, finish_reason(event.finish))], self._usage)

    def _answer(
        self,
        choices: list[CompletionChoice],
        usage: WireUsage | UnsetType | None,
        explain: Explain | UnsetType = UNSET,
    ) -> CompletionAnswer:
        head = self._head
        return CompletionAnswer(head.id, head.created, head.model, choices, head.fingerprint, head.seed, usage, explain)

    def end_chunk(self, usage: UsageCount | None, explain: Explain | UnsetType) -> CompletionAnswer:
        """The chunk with no choices."""
        return self._answer([], self._usage if usage is None else wire_usage(usage.total), explain)

    def whole(self, completions: Sequence[Completion], explain: Explain | UnsetType) -> CompletionAnswer:
        """The whole answer."""
        choices = []
        for place, completion in enumerate(completions):
            for choice in completion.choices:
                index = place * self._n + choice.index
                logprobs = OffsetLogprobs(self._tokenizer).shape(choice.logprobs) if self._logprobs else None
                choices.append(CompletionChoice(index, choice.text, logprobs, finish_reason(choice.finish_reason)))
        usage = sum((each.usage for each in completions), Usage())
        return self._answer(choices, wire_usage(usage), explain)
