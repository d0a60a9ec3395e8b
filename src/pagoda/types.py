"""What goes into the engine and what comes out: `GenerateRequest` and `TokenEvent`.

Knows nothing of HTTP, arrays or models. Every value here has been validated: code further in does not check again.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal

from pagoda.errors import InvalidRequest, PagodaError

MAX_CHOICES = 128
MAX_STOPS = 16
MAX_LOGPROBS = 20
MAX_SEED = 2**64 - 1
MAX_PRIORITY = 10
MIN_REPETITIONS = 3
EarlyStopping = bool | Literal["never"]
"""When beam search is over: see `SamplingParams.early_stopping`."""


class FinishReason(StrEnum):
    """Why a sequence ended."""

    STOP = "stop"  # the model's end-of-turn token, a stop token or a stop string
    LENGTH = "length"  # max_tokens, the server's cap, or the end of the context
    REPETITION = "repetition"  # the output went round in a loop, and `repetition_stop` was set
    CANCELLED = "cancelled"  # the client went away or asked for it
    SHUTDOWN = "shutdown"  # the server stopped, and the time it gives to answers under way was over
    ERROR = "error"  # the engine failed; the event carries the error


def _check(name: str, value: float, low: float, high: float) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        top = "" if math.isinf(high) else f" and at most {high:g}"
        raise InvalidRequest(f"{name} must be at least {low:g}{top}, got {value!r}", name)


_SHAPING = (
    "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty", "repetition_stop"
)  # fmt: skip
"""Fields that beam search leaves alone."""


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How to choose tokens, and when to stop.

    Raises:
        InvalidRequest: a value is out of its range; `param` names the field.
    """

    max_tokens: int | None = None
    """Most tokens to generate for each choice; None is up to the end of the context (or the server's cap)."""
    temperature: float = 1.0
    """0 takes the most likely token; otherwise logits are divided by this. 0 to 2."""
    top_p: float = 1.0
    """Keep the smallest set of likeliest tokens whose probability reaches this. Over 0, to 1."""
    top_k: int = 0
    """Keep this many of the likeliest tokens; 0 keeps all."""
    min_p: float = 0.0
    """Drop tokens less likely than this fraction of the likeliest. 0 to 1."""
    seed: int | None = None
    """The noise's key, 0 to 2**64 - 1; None draws one, which is returned."""
    n: int = 1
    """Choices to generate from the one prompt."""
    stop: tuple[str, ...] = ()
    """Strings that end the output; they are not part of it."""
    stop_token_ids: tuple[int, ...] = ()
    """Token ids that end the output, as the model's own end-of-turn token does."""
    ignore_eos: bool = False
    """Go on past the model's end-of-turn token (for measurements)."""
    presence_penalty: float = 0.0
    """Taken once from the logit of each token already in the output. -2 to 2."""
    frequency_penalty: float = 0.0
    """Taken from the logit of a token once for each time it is in the output. -2 to 2."""
    repetition_penalty: float = 1.0
    """Logits of tokens in prompt or output are divided by this if positive, else multiplied. Over 0, to 10."""
    logprobs: int | None = None
    """None: no log-probabilities. 0: the chosen token's. k: the chosen token's and the k likeliest tokens'."""
    repetition_stop: int = 0
    """End when the output's last tokens are one run so many times in a row; 0 never does. From 3."""
    best_of: int | None = None
    """Choices to sample, of which the `n` of greatest mean log-probability are the answer; None is `n`."""
    beams: int | None = None
    """Width of beam search, whose `n` best lines are the answer; None samples. Beams draw nothing: temperature may be 1
    or 0, and what else shapes the sampling stays at its default."""
    length_penalty: float = 1.0
    """A finished line's score is the sum of its log-probabilities divided by its length to this power. -10 to 10."""
    early_stopping: EarlyStopping = False
    """True: the search is over as soon as `beams` lines are finished. False: once the best that goes on is, as it
    stands, no better than the worst of them. "never": once it could not become better in the length that is left."""

    def __post_init__(self) -> None:
        """Check every range."""
        inf = math.inf
        if self.max_tokens is not None:
            _check("max_tokens", self.max_tokens, 1, inf)
        _check("temperature", self.temperature, 0, 2)
        _check("top_p", self.top_p, 0, 1)
        if self.top_p == 0:
            raise InvalidRequest("top_p must be over 0, got 0", "top_p")
        _check("top_k", self.top_k, 0, inf)
        _check("min_p", self.min_p, 0, 1)
        if self.seed is not None:
            _check("seed", self.seed, 0, MAX_SEED)
        _check("n", self.n, 1, MAX_CHOICES)
        _check("presence_penalty", self.presence_penalty, -2, 2)
        _check("frequency_penalty", self.frequency_penalty, -2, 2)
        _check("repetition_penalty", self.repetition_penalty, 0, 10)
        if self.repetition_penalty == 0:
            raise InvalidRequest("repetition_penalty must be over 0, got 0", "repetition_penalty")
        if self.logprobs is not None:
            _check("logprobs", self.logprobs, 0, MAX_LOGPROBS)
        _check("repetition_stop", self.repetition_stop, 0, inf)
        if 0 < self.repetition_stop < MIN_REPETITIONS:
            raise InvalidRequest(
                f"repetition_stop must be 0 or at least {MIN_REPETITIONS}, got {self.repetition_stop}",
                "repetition_stop",
            )
        if len(self.stop) > MAX_STOPS or not all(self.stop):
            raise InvalidRequest(f"stop takes at most {MAX_STOPS} strings, none of them empty", "stop")
        if self.best_of is not None:
            _check("best_of", self.best_of, self.n, MAX_CHOICES)
        _check("length_penalty", self.length_penalty, -10, 10)
        if not isinstance(self.early_stopping, bool) and self.early_stopping != "never":
            raise InvalidRequest(
                f'early_stopping is true, false or "never", got {self.early_stopping!r}', "early_stopping"
            )
        if self.beams is not None:
            self._check_beams(self.beams)

    @property
    def sequences(self) -> int:
        """How many sequences a request has: its choices, all it chooses from, or its beams."""
        return self.beams or self.best_of or self.n

    @property
    def held_back(self) -> bool:
        """Whether the answer is known only when all sequences have ended."""
        return self.beams is not None or self.sequences > self.n

    def _check_beams(self, beams: int) -> None:
        """Whether a width is possible, and nothing is asked for that beam search does not do."""
        _check("beams", beams, self.n, MAX_CHOICES)
        if self.best_of is not None:
            raise InvalidRequest(
                "best_of does not combine with beams: give the width as beams, and leave it out", "best_of"
            )
        if self.temperature not in (0, 1):
            raise InvalidRequest(
                f"beam search draws nothing, so temperature does not apply: leave it out, got {self.temperature:g}",
                "temperature",
            )
        for name in _SHAPING:
            default, given = SamplingParams.__dataclass_fields__[name].default, getattr(self, name)
            if given != default:
                raise InvalidRequest(f"{name} does not apply to beam search: leave it out, got {given!r}", name)


@dataclass(frozen=True, slots=True)
class Slo:
    """The latency that a request, or an operator, asks for.

    Raises:
        InvalidRequest: a target that is not a positive number of milliseconds.
    """

    ttft_ms: float | None = None
    """From arrival to the first token; None is no target."""
    tpot_ms: float | None = None
    """Mean time per output token after the first; None is no target."""
    serve_late: bool = False
    """Whether to be served all the same if `ttft_ms` cannot be kept; otherwise the request is refused at once."""

    def __post_init__(self) -> None:
        """Check every range."""
        for name in ("ttft_ms", "tpot_ms"):
            value = getattr(self, name)
            if value is not None and not (not isinstance(value, bool) and 0 < value < math.inf):
                raise InvalidRequest(f"slo.{name} must be a positive number of milliseconds, got {value!r}", "slo")


@dataclass(frozen=True, slots=True)
class GenerateRequest:
    """A validated request: what the engine takes. Built by `engine.admission.validate` alone."""

    id: str
    """Unique among the requests under way."""
    prompt: tuple[int, ...]
    """Token ids; at least one."""
    params: SamplingParams
    """With `max_tokens` and `seed` resolved to numbers."""
    arrival: float
    """When the client's request came in, in seconds of `time.monotonic()`: TTFT counts from here."""
    tenant: str = ""
    """Whose request it is: prefixes are shared within a tenant."""
    slo: Slo = Slo()
    """Its latency targets; the engine's own stand in for those that are None."""
    priority: int = 0
    """-10 to 10: the higher, the earlier among its tenant's requests, by a second each."""
    speculate: bool = True
    """Whether drafts may be verified for it. Changes no output."""


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """The log-probability (natural, of the raw logits) of one token, and of the likeliest ones at its place."""

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()
    """(token id, log-probability), likeliest first, ties by id."""


@dataclass(frozen=True, slots=True)
class Timings:
    """Where a finished sequence's time went, in seconds from the request's arrival."""

    queued: float
    """Until the first step that had a chunk of it."""
    first_token: float
    """TTFT: until its first token was known."""
    total: float
    """Until it ended."""
    preemptions: int = 0
    """How often it lost its pages and was recomputed."""
    predicted: float | None = None
    """The TTFT predicted when it was taken on."""


class CacheCause(StrEnum):
    """Why a prefix was not found further than it was."""

    WHOLE = "whole"  # all but the last token, which is always computed
    DIFFERENT = "different_token"  # something kept goes on here with another token
    NEVER_SEEN = "never_seen"  # what is kept ends here
    EVICTED = "evicted"  # it was kept and had to give way
    OTHER_KEY = "other_key"  # it is kept for another tenant; counted, and never told to a client
    OFF = "off"  # no prefixes are kept


@dataclass(frozen=True, slots=True)
class CacheExplanation:
    """What the cache had of a request's prompt when it was first admitted."""

    matched: int
    """Tokens found: the match ended at this position."""
    cause: CacheCause
    """Why it ended there; never OTHER_KEY."""
    instead: tuple[int, ...] = ()
    """The first tokens that this tenant's own prefixes have there instead, if they go on: never another tenant's."""


@dataclass(frozen=True, slots=True)
class PinInfo:
    """A pinned prefix."""

    id: int
    owner: str
    """The tenant who pinned it."""
    shared: bool
    """Whether it serves every tenant; else it serves its owner."""
    name: str
    """What the owner calls it; may be empty."""
    created: float
    """When, in seconds of Unix time."""
    tokens: int
    pages: int
    """KV pages it holds, of all groups together; pins that share a beginning share its pages."""
    hits: int
    """Admissions that found it whole, of the tenants that it serves."""


class DiskFault(StrEnum):
    """Why a file of the tier could not be used, or not be written. None of them changes an answer."""

    DAMAGED = "damaged"  # its checksum does not fit: changed since it was written
    TRUNCATED = "truncated"  # shorter than it says
    FOREIGN = "foreign"  # of other weights, formats, kernels or page size, or of another program
    WRONG_KEY = "wrong_key"  # written under another key
    MISSING = "missing"  # gone since the start
    READ_ERROR = "read_error"
    SLOW = "slow"  # not read in time: computed instead
    DISK_FULL = "disk_full"  # nothing is written for a while
    WRITE_ERROR = "write_error"


@dataclass(frozen=True, slots=True)
class DiskReport:
    """What is kept on disk. A unit is one page of each KV group; counts are since the start."""

    units: int
    """That can be restored."""
    bytes: int
    """Of all files, in whole blocks of the file system; never over `budget`."""
    budget: int
    saved: int
    """Units written."""
    restored: int
    """Units read back and put in place."""
    dropped: int
    """Units not written: the disk was too slow or full, or the budget was all pins."""
    faults: tuple[tuple[DiskFault, int], ...]
    """Files that could not be used or written, by cause."""
    writing: bool
    """False: the disk is full or refuses, and is tried again later."""
    restore_s: float | None
    """Measured seconds to restore a token: read, verify, copy. None: not measured yet."""
    compute_s: float | None
    """Measured seconds to compute a token of a prompt."""


@dataclass(frozen=True, slots=True)
class CacheReport:
    """What every KV page is used for."""

    page_size: int
    """Token slots of a page."""
    total: int
    """Pages of all KV groups together; the next four add up to it."""
    used: int
    """Pages of sequences under way, and of no pin."""
    pinned: int
    cached: int
    """Pages that hold prefixes and nothing else."""
    free: int
    prefixes: int
    """Places where kept prefixes end or part, pins not counted."""
    pins: tuple[PinInfo, ...]
    maps: tuple[str, ...]
    """One letter for each page of each KV group: `.` free, `c` cached, `u` used by one sequence, `s` shared by several
    (or used and cached), `p` pinned.
    """
    disk: DiskReport | None = None
    """None without `kv_dir`."""


@dataclass(frozen=True, slots=True)
class TokenEvent:
    """News of one sequence. The last one of a sequence has `finish`; after it there is none."""

    request_id: str
    index: int
    """Which choice, from 0."""
    token_ids: tuple[int, ...] = ()
    """Tokens new since the last event."""
    text: str = ""
    """Text that is certain by now: complete characters, and no beginning of a stop string."""
    logprobs: tuple[TokenLogprob, ...] = ()
    """One for each of `token_ids`, if they were asked for."""
    finish: FinishReason | None = None
    prompt_tokens: int = 0
    """On the last event: tokens of the prompt."""
    completion_tokens: int = 0
    """On the last event: tokens generated, those of a stop string or end of turn included."""
    cached_tokens: int = 0
    """On the last event: prompt tokens whose KV was found in the cache when the request was first admitted."""
    cache: CacheExplanation | None = None
    """On the last event, if the request was admitted."""
    timings: Timings | None = None
    """On the last event."""
    accepted_drafts: int = 0
    """On the last event: drafts that were right, each a token without a step of its own."""
    rejected_drafts: int = 0
    """On the last event: drafts that were wrong."""
    error: PagodaError | None = field(default=None, compare=False)
    """On the last event, if `finish` is ERROR."""
