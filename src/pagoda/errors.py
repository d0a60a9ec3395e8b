"""Every error that Pagoda raises on purpose.

    PagodaError
    ├── UserError                  the caller can mend it            HTTP status
    │   ├── InvalidRequest         a request that cannot be served   400
    │   │   ├── UnsupportedField   a field Pagoda does not have      400
    │   │   └── PromptTooLong      no room for prompt and one token  400
    │   ├── UnknownModel           no such name in the catalogue     404
    │   └── InvalidConfig          a flag or setting out of range
    ├── ModelError                 the model's files are the cause
    │   ├── ModelFileError         damaged, truncated, lying
    │   ├── UnsupportedModel       sound, but of a kind not known
    │   └── DownloadError          absent and not to be had
    ├── MemoryLimit                the machine is too small          503
    ├── Overloaded                 too many requests under way       503
    │   └── TargetMissed           its TTFT target cannot be kept    429
    └── EngineDied                 the engine stopped                503

A message says what happened, the value found, and the way out.
"""

from __future__ import annotations


class PagodaError(Exception):
    """The root of the tree: catching it catches everything Pagoda raises on purpose."""


class UserError(PagodaError):
    """The caller can mend it."""


class InvalidRequest(UserError):
    """A request that cannot be served as it stands. `param` names the field, if there is one."""

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class UnsupportedField(InvalidRequest):
    """A field that Pagoda does not implement, refused by name rather than ignored."""


class PromptTooLong(InvalidRequest):
    """The prompt leaves no room for one output token."""


class UnknownModel(UserError):
    """No such name in the catalogue, and no such file."""


class InvalidConfig(UserError):
    """A flag or setting out of its range."""


class ModelError(PagodaError):
    """The model's files are the cause."""


class ModelFileError(ModelError):
    """A model file that is damaged, truncated, or says one thing and holds another."""


class UnsupportedModel(ModelError):
    """A sound model file of an architecture, tokenizer or tensor type that Pagoda does not know."""


class DownloadError(ModelError):
    """The model is not here and could not be fetched."""


class MemoryLimit(PagodaError):
    """The machine's (or the cgroup's) memory does not hold what was asked for."""


class Overloaded(PagodaError):
    """Too many requests are under way to take one more: try again later."""


class TargetMissed(Overloaded):
    """The request's TTFT target cannot be kept: it is refused at once, rather than served late.

    Args:
        predicted_ms: the TTFT it would have.
        target_ms: the TTFT it asked for.
        requests, tokens: that wait before it, in all.
    """

    def __init__(
        self, message: str, predicted_ms: float = 0.0, target_ms: float = 0.0, requests: int = 0, tokens: int = 0
    ) -> None:
        super().__init__(message)
        self.predicted_ms, self.target_ms = predicted_ms, target_ms
        self.requests, self.tokens = requests, tokens


class EngineDied(PagodaError):
    """The engine stopped: every request under way ends with this."""
