"""The cache room: who owns which page. Integers only: it never sees a key, a value or a token's text."""

from pagoda.cache.kv import Extension, KVCache
from pagoda.cache.pool import PagePool

__all__ = ["Extension", "KVCache", "PagePool"]
