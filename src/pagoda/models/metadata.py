"""A model file's hyperparameters, read with a clear word about whatever is wrong with them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from pagoda.errors import ModelFileError


@dataclass(frozen=True, slots=True)
class Metadata:
    """Keys of one architecture, `llama.block_count` for `count("block_count")`."""

    path: str
    architecture: str
    values: Mapping[str, object]

    def has(self, key: str) -> bool:
        """Whether the file says anything of it."""
        return f"{self.architecture}.{key}" in self.values

    def _value(self, key: str, default: object) -> object:
        found = self.values.get(f"{self.architecture}.{key}", default)
        if found is None:
            raise ModelFileError(f"{self.path}: metadata '{self.architecture}.{key}' is missing")
        return found

    def count(self, key: str, default: int | None = None) -> int:
        """A whole number of at least 1.

        Raises:
            ModelFileError: it is missing and there is no default, or it is something else.
        """
        found = self._value(key, default)
        if isinstance(found, bool) or not isinstance(found, int) or not 1 <= found < 2**31:
            raise ModelFileError(
                f"{self.path}: metadata '{self.architecture}.{key}' must be a count, found {found!r:.60}"
            )
        return found

    def number(self, key: str, default: float | None = None) -> float:
        """A positive, finite number.

        Raises:
            ModelFileError: it is missing and there is no default, or it is something else.
        """
        found = self._value(key, default)
        if isinstance(found, bool) or not isinstance(found, int | float) or not 0 < found < math.inf:
            raise ModelFileError(
                f"{self.path}: metadata '{self.architecture}.{key}' must be a positive number, found {found!r:.60}"
            )
        return float(found)

    def text(self, key: str, default: str) -> str:
        """A string.

        Raises:
            ModelFileError: it is something else.
        """
        found = self._value(key, default)
        if not isinstance(found, str):
            raise ModelFileError(
                f"{self.path}: metadata '{self.architecture}.{key}' must be a string, found {found!r:.60}"
            )
        return found

    def truth(self, key: str, default: bool) -> bool:
        """Yes or no.

        Raises:
            ModelFileError: it is something else.
        """
        found = self._value(key, default)
        if not isinstance(found, bool):
            raise ModelFileError(
                f"{self.path}: metadata '{self.architecture}.{key}' must be a truth value, found {found!r:.60}"
            )
        return found

    def flags(self, key: str, count: int) -> tuple[bool, ...] | None:
        """A truth value for each of `count` layers, or None if the file has none.

        Raises:
            ModelFileError: it is something else.
        """
        found = self.values.get(f"{self.architecture}.{key}")
        if not isinstance(found, list):
            return None
        if len(found) != count or not all(isinstance(each, bool) for each in found):
            raise ModelFileError(
                f"{self.path}: metadata '{self.architecture}.{key}' must be {count} truth values, found {found!r:.60}"
            )
        return tuple(found)
