"""API keys: who may call, as a file says that can be changed while the server runs.

Knows the file and the `authorization` header. A key is 32 random bytes, so one SHA-256 of it keeps it as well as any
slow hash would; all hashes are compared, in constant time, so that no answer's time tells how near a guess came.

    [keys.alice]
    sha256 = "..."                     # made by `pagoda keys new alice`
    administrator = false
    max_concurrent = 8
    tokens_per_minute = 60000
    max_output_tokens = 512
    output_caps = { "/v1/completions" = 64 }
    repetition_stop = 4
    ttft_ms = 2000
    tpot_ms = 100
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import os
import re
import secrets
import time
import tomllib
from dataclasses import dataclass
from pathlib import Path

import msgspec
from starlette.requests import Request

from pagoda.errors import InvalidConfig, InvalidRequest
from pagoda.server.errors import HttpFailure
from pagoda.server.identity import Caller
from pagoda.server.limits import Limits
from pagoda.types import MIN_REPETITIONS, Slo

PREFIX = "pgd_"
LOOK_S = 1.0
"""How often the file is looked at, at most."""
_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")
logger = logging.getLogger("pagoda.server")


class _Entry(msgspec.Struct, forbid_unknown_fields=True):
    """A key, as the file has it."""

    sha256: str
    administrator: bool = False
    max_concurrent: int | None = None
    tokens_per_minute: int | None = None
    max_output_tokens: int | None = None
    output_caps: dict[str, int] = {}
    repetition_stop: int = 0
    ttft_ms: float | None = None
    tpot_ms: float | None = None


class _File(msgspec.Struct, forbid_unknown_fields=True):
    keys: dict[str, _Entry] = {}


@dataclass(frozen=True, slots=True)
class Key:
    """A key that may call."""

    sha256: bytes
    caller: Caller


def read_keys(path: Path) -> tuple[Key, ...]:
    """The file's keys.

    Raises:
        InvalidConfig: it cannot be read, or says what it may not; the key is named.
    """
    try:
        entries = msgspec.convert(tomllib.loads(path.read_text()), _File).keys
    except (OSError, ValueError) as error:
        raise InvalidConfig(f"the keys in {path} cannot be read: {error}") from None
    return tuple(_key(path, name, entry) for name, entry in entries.items())


def _key(path: Path, name: str, entry: _Entry) -> Key:
    def wrong(what: str) -> InvalidConfig:
        return InvalidConfig(f"{path}, key {name!r}: {what}")

    if not _NAME.fullmatch(name):
        raise wrong("a name has 1 to 64 letters, digits, dots, dashes or underscores")
    if not re.fullmatch(r"[0-9a-f]{64}", entry.sha256):
        raise wrong("sha256 must be 64 hexadecimal digits: make the key with `pagoda keys new`")
    counts = {f: getattr(entry, f) for f in ("max_concurrent", "tokens_per_minute", "max_output_tokens")}
    for field, value in {**counts, **{f"output_caps of {p}": cap for p, cap in entry.output_caps.items()}}.items():
        if value is not None and value < 1:
            raise wrong(f"{field} must be positive, got {value}")
    if entry.repetition_stop and entry.repetition_stop < MIN_REPETITIONS:
        raise wrong(f"repetition_stop must be 0 or at least {MIN_REPETITIONS}, got {entry.repetition_stop}")
    try:
        slo = Slo(entry.ttft_ms, entry.tpot_ms)
    except InvalidRequest as error:
        raise wrong(str(error)) from None
    limits = Limits(**counts, output_caps=entry.output_caps, repetition_stop=entry.repetition_stop, slo=slo)
    return Key(bytes.fromhex(entry.sha256), Caller(name, entry.administrator, limits))


class KeyFile:
    """Says who calls, by the file as it is now. A file that cannot be read changes nothing, and is logged.

    Raises:
        InvalidConfig: it cannot be read at first.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._keys = read_keys(path)
        self._stamp = self._look()
        self._looked = time.monotonic()

    def __call__(self, request: Request) -> Caller:
        """The caller: its name, whether it is an administrator, and its limits.

        Raises:
            HttpFailure: 401, it has no key, or one that is not in the file.
        """
        if time.monotonic() - self._looked > LOOK_S:
            self._looked = time.monotonic()
            if self._look() != self._stamp:
                self.reload()
        kind, _, key = request.headers.get("authorization", "").partition(" ")
        given = hashlib.sha256(key.strip().encode("latin-1", "replace")).digest()
        found = None
        for each in self._keys:
            if hmac.compare_digest(each.sha256, given):
                found = each.caller
        if found is None or kind.lower() != "bearer":
            message = "this server needs a key: send it as `authorization: Bearer KEY`; the key sent is not known"
            raise HttpFailure(401, message if key else message.partition(";")[0], code="invalid_api_key")
        return found

    def reload(self) -> None:
        """Read the file again."""
        self._stamp = self._look()
        try:
            self._keys = read_keys(self._path)
        except InvalidConfig as error:
            logger.error("%s; the keys stay as they were", error)
        else:
            logger.info("%d keys in %s", len(self._keys), self._path)

    def _look(self) -> tuple[int, int, int]:
        try:
            stat = self._path.stat()
        except OSError:
            return (0, 0, 0)
        return stat.st_mtime_ns, stat.st_size, stat.st_ino


def new_key(path: Path, name: str, administrator: bool = False) -> str:
    """A new key, whose hash is added to the file; the key itself is kept nowhere.

    Raises:
        InvalidConfig: the name is no name, or taken, or the file cannot be written.
    """
    known = read_keys(path) if path.exists() else ()
    if any(key.caller.tenant == name for key in known):
        raise InvalidConfig(f"{path} has a key {name!r}: choose another name, or take that one out")
    if not _NAME.fullmatch(name):
        raise InvalidConfig(f"{name!r} is no name: 1 to 64 letters, digits, dots, dashes or underscores")
    key = PREFIX + secrets.token_urlsafe(32)
    lines = ["", f'[keys."{name}"]', f'sha256 = "{hashlib.sha256(key.encode()).hexdigest()}"']
    lines += ["administrator = true"] if administrator else []
    try:
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "a") as file:
            file.write("\n".join([*lines, ""]))
    except OSError as error:
        raise InvalidConfig(f"{path} cannot be written: {error.strerror}") from None
    return key
