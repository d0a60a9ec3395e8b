"""The cache room: who owns which page, and which prefixes are kept.

Integers only: it never sees a key, a value or a token's text.
"""

from pagoda.cache.kv import KVCache
from pagoda.cache.pool import PagePool
from pagoda.cache.radix import Key, RadixTree
from pagoda.cache.tables import Extension, Match

__all__ = ["Extension", "KVCache", "Key", "Match", "PagePool", "RadixTree"]
