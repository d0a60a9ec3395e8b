"""The cache room: who owns which page, and which prefixes are kept.

Integers only: it never sees a key, a value or a token's text; what goes to disk and comes back passes as bytes.
"""

from pagoda.cache.disk import Disk, NoDisk, PinRecord
from pagoda.cache.kv import KVCache
from pagoda.cache.paths import PathStart
from pagoda.cache.pool import PagePool
from pagoda.cache.radix import Key, RadixTree
from pagoda.cache.tables import Extension, Match

__all__ = ["Disk", "Extension", "KVCache", "Key", "Match", "NoDisk", "PagePool", "PathStart", "PinRecord", "RadixTree"]
