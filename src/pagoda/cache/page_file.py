"""How a page lies in a file: a header that says whose and which tokens it is, its bytes, and a keyed checksum of each.

    head     magic, version, id of the key, length of the header
    header   identity, name, parent, start, length of the payload, tenant, tokens
    32 bytes checksum of head and header
    payload  one page of each KV group
    32 bytes checksum of the first checksum and the payload

Numbers are little-endian. Checksums are BLAKE2b with a key (Aumasson et al. 2013), so that a file that someone else put
there is as good as damaged. A name is a keyed hash of identity, tenant and all tokens up to the page's end: it tells
nothing to whoever has no key. Knows bytes; opens no file.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b

from pagoda.types import DiskFault

MAGIC = b"PagodaKV"
VERSION = 1
NAME = 20
"""Bytes of a name."""
MAC = 32
"""Bytes of a checksum."""
_HEAD = struct.Struct("<8sI8sI")
_FIXED = struct.Struct(f"<{NAME}s{NAME}s{NAME}sQQHI")
HEAD = _HEAD.size
LONGEST = 2**26
"""Bytes of a header that are believed: sixteen million tokens of a pin."""


class PageFault(Exception):
    """A file that cannot be used."""

    def __init__(self, fault: DiskFault, what: str) -> None:
        super().__init__(what)
        self.fault = fault


@dataclass(frozen=True, slots=True)
class PageId:
    """Which page: one of each KV group, all of the same tokens."""

    name: bytes
    parent: bytes
    """The name of the page before it."""
    tenant: str
    start: int
    """Absolute position of its first token; of a pin, its number."""
    tokens: tuple[int, ...]


class Seal:
    """Names and checksums under one key, for the pages of one identity.

    Args:
        key: 32 bytes, kept secret.
        identity: of weights, KV format, layout and page size: pages of another one are foreign.
    """

    def __init__(self, key: bytes, identity: str) -> None:
        self._key = key
        self.identity = blake2b(identity.encode(), key=key, digest_size=NAME, person=b"identity").digest()
        self.key_id = blake2b(b"", key=key, digest_size=8, person=b"key").digest()

    def root(self, tenant: str) -> bytes:
        """What the first page of a tenant's prefixes follows on."""
        return self._hash(b"root", self.identity + tenant.encode(), NAME)

    def name(self, parent: bytes, tokens: Sequence[int]) -> bytes:
        """Of a page of these tokens, after the page (or root) of name `parent`."""
        return self._hash(b"page", parent + _packed(tokens), NAME)

    def pin_name(self, number: int, owner: str, tokens: Sequence[int]) -> bytes:
        """Of a pin's record."""
        return self._hash(b"pin", self.root(owner) + struct.pack("<Q", number) + _packed(tokens), NAME)

    def header(self, page: PageId, payload: int) -> bytes:
        """All that stands before a payload of so many bytes."""
        tenant = page.tenant.encode()
        fixed = _FIXED.pack(self.identity, page.name, page.parent, page.start, payload, len(tenant), len(page.tokens))
        body = fixed + tenant + _packed(page.tokens)
        before = _HEAD.pack(MAGIC, VERSION, self.key_id, len(body)) + body
        return before + self._hash(b"header", before, MAC)

    def footer(self, header: bytes, payload: memoryview | bytes) -> bytes:
        """What stands after it."""
        mac = blake2b(header[-MAC:], key=self._key, digest_size=MAC, person=b"payload")
        mac.update(payload)
        return mac.digest()

    def length(self, head: bytes) -> int:
        """Bytes of a whole header, by its first `HEAD` bytes.

        Raises:
            PageFault: not a file of ours.
        """
        if len(head) < HEAD:
            raise PageFault(DiskFault.TRUNCATED, f"{len(head)} bytes, and its head has {HEAD}")
        magic, version, key_id, length = _HEAD.unpack_from(head)
        if magic != MAGIC or version != VERSION:
            raise PageFault(DiskFault.FOREIGN, f"begins with {bytes(head[:12])!r}: not a page, or of another version")
        if key_id != self.key_id:
            raise PageFault(DiskFault.WRONG_KEY, "was written under another key")
        if not _FIXED.size <= length <= LONGEST:
            raise PageFault(DiskFault.DAMAGED, f"says that its header has {length} bytes")
        return HEAD + int(length) + MAC

    def parse(self, header: bytes) -> tuple[PageId, int]:
        """Which page a whole header tells of, and the bytes of its payload.

        Raises:
            PageFault: truncated, damaged, or of another identity.
        """
        length = self.length(header)
        if len(header) < length:
            raise PageFault(DiskFault.TRUNCATED, f"{len(header)} bytes, and its header has {length}")
        before, mac = header[: length - MAC], header[length - MAC : length]
        if self._hash(b"header", before, MAC) != mac:
            raise PageFault(DiskFault.DAMAGED, "the checksum of its header does not fit")
        identity, name, parent, start, payload, size, count = _FIXED.unpack_from(before, HEAD)
        if identity != self.identity:
            raise PageFault(DiskFault.FOREIGN, "belongs to other weights, formats, kernels or page size")
        at = HEAD + _FIXED.size
        tenant = before[at : at + size].decode()
        tokens = struct.unpack_from(f"<{count}I", before, at + size)
        return PageId(name, parent, tenant, start, tokens), payload

    def check_payload(self, header: bytes, payload: memoryview | bytes, footer: bytes) -> None:
        """Raises:
        PageFault: the payload is not what was written.
        """
        if self.footer(header, payload) != footer:
            raise PageFault(DiskFault.DAMAGED, "the checksum of its pages does not fit")

    def _hash(self, what: bytes, data: bytes, size: int) -> bytes:
        return blake2b(data, key=self._key, digest_size=size, person=what).digest()


def _packed(tokens: Sequence[int]) -> bytes:
    return struct.pack(f"<{len(tokens)}I", *tokens)
