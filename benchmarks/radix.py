"""What the prefix cache costs: microseconds of processor time to match and to insert a prompt, with 10 to 100,000
prefixes cached, and the tree's memory against the KV it describes.

Physics: a prompt of 2,048 tokens has 128 pages of 16; each takes a dictionary look-up and a comparison of 16 tokens to
match, and a node of about a kilobyte to insert. Neither hangs on how many prefixes there are. A page's KV takes 369 kB.

    PYTHONPATH=src python benchmarks/radix.py
"""

from __future__ import annotations

import gc
import json
import random
import statistics
import time
import tracemalloc

from pagoda.cache import KVCache

PAGE_SIZE = 16
KV_BYTES_PER_TOKEN = 23_040
"""Of the default model: 30 layers, 3 heads of 64, keys and values in f16."""
PREFIXES = (10, 100, 1_000, 10_000, 100_000)
TOKENS = 64
"""Of each cached prefix; half of them begin as another does, and part from it inside a page."""
PROMPT = 2_048
SAMPLES = 60
VOCABULARY = 49_152


def prefix(generator: random.Random, before: list[tuple[int, ...]]) -> tuple[int, ...]:
    tokens = tuple(generator.choices(range(VOCABULARY), k=TOKENS))
    if before and generator.random() < 0.5:
        head = generator.choice(before)
        tokens = head[: generator.randrange(TOKENS)] + tokens
    return tokens[:TOKENS]


def keep(cache: KVCache, name: int, tokens: tuple[int, ...]) -> None:
    """What a request does: it is admitted, its pages are written and published, and it ends."""
    found = cache.admit(name, tokens).length
    cache.extend(name, found, len(tokens))
    cache.commit(name, tokens[found:])
    cache.release(name)


def timed(cache: KVCache, generator: random.Random, names: range) -> tuple[list[float], list[float]]:
    """Microseconds of matching and of inserting prompts of PROMPT tokens that begin in a way the cache knows."""
    match, insert = [], []
    for name in names:
        tokens = tuple(generator.choices(range(VOCABULARY), k=PROMPT))
        cache.admit(name, tokens)
        cache.extend(name, 0, PROMPT)
        start = time.thread_time()
        cache.commit(name, tokens)
        insert.append(1e6 * (time.thread_time() - start))
        cache.release(name)
        start = time.thread_time()
        found = cache.match("", tokens).length
        match.append(1e6 * (time.thread_time() - start))
        assert found == PROMPT - 1
    return match, insert


def main() -> None:
    generator = random.Random(0)
    cache = KVCache((PREFIXES[-1] * TOKENS // PAGE_SIZE + SAMPLES * len(PREFIXES) * PROMPT // PAGE_SIZE,), PAGE_SIZE)
    known: list[tuple[int, ...]] = []
    figures: dict[str, float] = {}
    tracemalloc.start()
    gc.collect()
    before, tokens_before = tracemalloc.get_traced_memory()[0], cache.idle
    for tokens in [prefix(generator, known) for _ in range(PREFIXES[2])]:
        keep(cache, len(known), tuple(tokens))
        known.append(tokens)
    gc.collect()
    size = tracemalloc.get_traced_memory()[0] - before
    described = (cache.idle - tokens_before) * PAGE_SIZE * KV_BYTES_PER_TOKEN
    tracemalloc.stop()
    figures["bytes_per_page"] = round(size / (cache.idle - tokens_before))
    figures["memory_percent_of_kv"] = round(100 * size / described, 3)

    cache = KVCache((PREFIXES[-1] * TOKENS // PAGE_SIZE + SAMPLES * len(PREFIXES) * PROMPT // PAGE_SIZE,), PAGE_SIZE)
    known = []
    for count in PREFIXES:
        while len(known) < count:
            known.append(prefix(generator, known))
            keep(cache, len(known), known[-1])
        gc.collect()
        gc.disable()
        match, insert = timed(cache, generator, range(10**6 + count * 10, 10**6 + count * 10 + SAMPLES))
        gc.enable()
        figures[f"match_us_{count}"] = round(statistics.median(match), 1)
        figures[f"insert_us_{count}"] = round(statistics.median(insert), 1)
        print(f"{count:7} prefixes: match {figures[f'match_us_{count}']} us, insert {figures[f'insert_us_{count}']} us")
    few, many = (sum(figures[f"{what}_us_{n}"] for what in ("match", "insert")) for n in (PREFIXES[0], PREFIXES[-1]))
    figures["many_over_few"] = round(many / few, 2)
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
