"""`OutputText`: one sequence's text as its tokens come, stop strings taken into account."""

from __future__ import annotations

from pagoda.engine.doors import Tokenizer
from pagoda.text.stops import StopStrings


class OutputText:
    """Tokens in, certain text out: complete characters, and no beginning of a stop string."""

    __slots__ = ("_detokenizer", "_stops")

    def __init__(self, tokenizer: Tokenizer, stops: tuple[str, ...]) -> None:
        self._detokenizer = tokenizer.detokenizer()
        self._stops = StopStrings(stops) if stops else None

    def push(self, token: int) -> tuple[str, bool]:
        """(text that is certain by this token, whether a stop string was found: then the text ends before it)."""
        return self._certain(self._detokenizer.push((token,)))

    def flush(self) -> tuple[str, bool]:
        """The rest, when no token follows; it may still turn out to hold a stop string."""
        text, stopped = self._certain(self._detokenizer.flush())
        if self._stops is None or stopped:
            return text, stopped
        return text + self._stops.flush(), False

    def _certain(self, text: str) -> tuple[str, bool]:
        return (text, False) if self._stops is None else self._stops.push(text)
