"""Token ids to text, as they come.

Knows UTF-8 and nothing of vocabularies: a function tells it the bytes that each token adds to the output.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable, Iterable

REPLACEMENT = "\ufffd"


class Detokenizer:
    """The text of one sequence. What it returns never depends on how the ids are split over calls.

    A character whose bytes are spread over several tokens comes with the last of them; bytes that are no UTF-8
    become U+FFFD, one for each longest beginning of a character (Unicode 16.0, section 3.9, "best practice").
    """

    def __init__(self, output: Callable[[int], bytes]) -> None:
        self._output = output
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, ids: Iterable[int]) -> str:
        """Take tokens; return the characters that are complete by now and were not before."""
        return self._decoder.decode(b"".join(map(self._output, ids)))

    def flush(self) -> str:
        """End the text: U+FFFD if a character was begun and not finished, else nothing."""
        return self._decoder.decode(b"", final=True)

    def check(self) -> None:
        """Assert that no more is held back than the beginning of one character."""
        held, _ = self._decoder.getstate()
        assert len(held) <= 3, f"held back {held!r}: longer than the beginning of a character"
        assert not held or held.decode(errors="replace") == REPLACEMENT, f"held back {held!r}: no beginning"
