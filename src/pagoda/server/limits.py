"""What one caller may take of the server, and how much it has taken.

Knows names and counts; knows nothing of HTTP or of how callers are told apart.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from pagoda.server.errors import HttpFailure
from pagoda.types import Slo

MINUTE_S = 60.0


@dataclass(frozen=True, slots=True)
class Limits:
    """What a key may take. None is no limit."""

    max_concurrent: int | None = None
    """Calls under way."""
    tokens_per_minute: int | None = None
    """Of prompts and answers together; a minute's worth may be taken at once."""
    max_output_tokens: int | None = None
    """Of any one choice."""
    output_caps: Mapping[str, int] = field(default_factory=dict)
    """The same, by path."""
    repetition_stop: int = 0
    """For requests that do not say: how many times over a run of tokens ends an answer; 0 never does."""
    slo: Slo = Slo()  # noqa: RUF009
    """Targets for requests that name none."""

    def output_cap(self, path: str, cap: int) -> int:
        """Most tokens of a choice, if the server's own cap is `cap`."""
        own = (self.max_output_tokens, self.output_caps.get(path))
        return min([cap, *(each for each in own if each is not None)])


NO_LIMITS = Limits()


class Ticket:
    """One call under way; to be closed at its end, which also happens if it is dropped."""

    __slots__ = ("_meter", "_name")

    def __init__(self, meter: Meter, name: str) -> None:
        self._meter: Meter | None = meter
        self._name = name

    def spend(self, tokens: int) -> None:
        """So many tokens more were taken."""
        if self._meter is not None:
            self._meter.spend(self._name, tokens)

    def close(self) -> None:
        """The call has ended; a second time does nothing."""
        meter, self._meter = self._meter, None
        if meter is not None:
            meter.close(self._name)

    def __del__(self) -> None:
        self.close()


class Meter:
    """Counts the calls and tokens of each caller. Used on the event loop only.

    Tokens are a bucket that fills by `tokens_per_minute` and holds a minute's worth; it may go below nothing, as an
    answer's length is known when it ends, and then nothing is taken until it is filled again.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._open: dict[str, int] = {}
        self._buckets: dict[str, tuple[float, float, int]] = {}

    def open(self, name: str, limits: Limits, tokens: int) -> Ticket:
        """A call with so many prompt tokens.

        Raises:
            HttpFailure: 429, it is over the caller's limits; it says when to come again.
        """
        count, most = self._open.get(name, 0), limits.max_concurrent
        if most is not None and count >= most:
            raise HttpFailure(
                429, f"{count} calls of {name} are under way, as many as it may have: wait for one to end",
                code="concurrency_limit", retry_after=1,
            )  # fmt: skip
        rate = limits.tokens_per_minute
        if rate is None:
            self._buckets.pop(name, None)
        else:
            left = self._left(name, rate)
            if left < min(tokens, rate):
                wait = math.ceil((min(tokens, rate) - left) * MINUTE_S / rate)
                raise HttpFailure(
                    429, f"{name} may take {rate} tokens a minute; {max(0, int(left))} are left, and the prompt has "
                    f"{tokens}: try again in {wait} s", code="token_limit", retry_after=wait,
                )  # fmt: skip
            self._buckets[name] = left - tokens, self._clock(), rate
        self._open[name] = count + 1
        return Ticket(self, name)

    def spend(self, name: str, tokens: int) -> None:
        """So many tokens more."""
        if name in self._buckets:
            left, at, rate = self._buckets[name]
            self._buckets[name] = left - tokens, at, rate

    def close(self, name: str) -> None:
        """A call has ended."""
        self._open[name] -= 1
        if not self._open[name]:
            del self._open[name]

    def check(self) -> None:
        """Assert that who is counted has calls under way, and that no bucket runs over."""
        assert all(count > 0 for count in self._open.values()), self._open
        assert all(left <= rate for left, _, rate in self._buckets.values()), self._buckets

    def _left(self, name: str, rate: int) -> float:
        if name not in self._buckets:
            return float(rate)
        left, at, _ = self._buckets[name]
        return min(float(rate), left + (self._clock() - at) * rate / MINUTE_S)
