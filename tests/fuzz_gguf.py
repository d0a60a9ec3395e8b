"""Mutation fuzzer for the GGUF reader: damaged files may raise `PagodaError` and nothing else.

    python tests/fuzz_gguf.py --seconds 20 --seed 1

Starts from small sound files, damages them (bits, lengths, truncation, pieces moved, cut or doubled), opens each and
reads and dequantizes every tensor. A case fails if any other exception or a warning comes out, if it takes over
`CASE_S` seconds, or if it needs more than `MEMORY` bytes. Failing inputs are kept and named. The last line has counts.
"""

from __future__ import annotations

import argparse
import random
import resource
import signal
import struct
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import gguf_writer as gw
from gguf_writer import As, File
from pagoda.catalog import ModelFile
from pagoda.errors import MemoryLimit, PagodaError
from tiny import TinyShape, tiny_file

CASE_S = 5.0
MEMORY = 512 * 2**20
LENGTHS = (0, 1, 7, 31, 32, 33, 255, 2**16, 2**24, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**40, 2**62, 2**63, 2**64 - 1)


class Hang(BaseException):
    """A case that takes too long. Not an `Exception`, so that nothing in between swallows it."""


def seeds() -> list[bytes]:
    """Sound files: small ones, where any byte matters, and a whole tiny model."""
    kinds = {str(kind): As(kind, 1) for kind in (gw.U8, gw.I8, gw.U16, gw.I16, gw.U32, gw.I32, gw.U64, gw.I64)}
    nested = As(gw.ARRAY, [As(gw.ARRAY, ["a", "é"], gw.STRING), As(gw.ARRAY, [1.5], gw.F64)], gw.ARRAY)
    metadata = {
        "general.architecture": "llama",
        "flags": [True, False],
        "words": ["ab", "", "世界"],
        "deep": nested,
        **kinds,
    }
    raw = bytes(range(256)) * 4
    sizes = {"f32": 4, "f16": 2, "bf16": 2, "q4_0": 18, "q5_1": 24, "q8_0": 34, "q4_k": 144, "q5_k": 176, "q6_k": 210}
    blocks = {"q4_k": 256, "q5_k": 256, "q6_k": 256, "f32": 1, "f16": 1, "bf16": 1}
    tensors = [
        gw.Tensor(f"blk.{name}", (2, blocks.get(name, 32)), name, raw[: 2 * size]) for name, size in sizes.items()
    ]
    tiny = tiny_file(TinyShape(layers=1, width=32, heads=1, kv_heads=1, head_dim=32, ffn=32, vocabulary=259))
    small = File({"general.architecture": "x", "general.alignment": 8}, tensors[:2], version=2, alignment=8)
    return [File(metadata, tensors).bytes(), small.bytes(), tiny.bytes()]


def flip_bits(data: bytearray, rng: random.Random, corpus: list[bytes]) -> None:
    for _ in range(rng.choice((1, 1, 2, 8, 64))):
        data[somewhere(data, rng)] ^= 1 << rng.randrange(8)


def set_bytes(data: bytearray, rng: random.Random, corpus: list[bytes]) -> None:
    at = somewhere(data, rng)
    data[at : at + rng.choice((1, 4, 8))] = bytes([rng.choice((0, 1, 255, 128))]) * rng.choice((1, 4, 8))


def edit_length(data: bytearray, rng: random.Random, corpus: list[bytes]) -> None:
    at, kind = somewhere(data, rng), rng.choice(("<I", "<Q"))
    size = struct.calcsize(kind)
    old = int.from_bytes(data[at : at + size], "little")
    new = rng.choice((rng.choice(LENGTHS), old + rng.choice((-2, -1, 1, 2)), old * 2)) % 2 ** (8 * size)
    data[at : at + size] = struct.pack(kind, new)


def truncate(data: bytearray, rng: random.Random, corpus: list[bytes]) -> None:
    del data[somewhere(data, rng) :]


def cut(data: bytearray, rng: random.Random, corpus: list[bytes]) -> None:
    at = somewhere(data, rng)
    del data[at : at + rng.choice((1, 4, 8, 12, 32, 200))]


def splice(data: bytearray, rng: random.Random, corpus: list[bytes]) -> None:
    """A piece of some seed over or into another place."""
    source = rng.choice(corpus)
    start, size, at = rng.randrange(len(source)), rng.choice((4, 8, 16, 40, 300)), somewhere(data, rng)
    data[at : at + rng.choice((0, size))] = source[start : start + size]


MUTATIONS: tuple[Callable[[bytearray, random.Random, list[bytes]], None], ...] = (
    flip_bits,
    set_bytes,
    edit_length,
    edit_length,
    truncate,
    cut,
    splice,
)


def somewhere(data: bytearray, rng: random.Random) -> int:
    """A position, mostly near the beginning, where the structure is."""
    last = max(len(data) - 1, 0)
    return min(last, rng.choice((rng.randrange(64), rng.randrange(1200), rng.randrange(last + 1))))


def damage(corpus: list[bytes], rng: random.Random) -> bytes:
    data = bytearray(rng.choice(corpus))
    for _ in range(rng.choice((1, 1, 1, 2, 3, 6))):
        if data:
            rng.choice(MUTATIONS)(data, rng, corpus)
    return bytes(data)


def read(path: Path) -> str:
    """Read all of a file; what came of it, in a word. Raises whatever should not have come out."""
    try:
        with ModelFile(path) as file:
            for name in file.tensors:
                file.tensor(name).floats()
        return "sound"
    except MemoryLimit:
        raise
    except PagodaError as error:
        return type(error).__name__


def cap_memory() -> None:
    """Let the address space grow by `MEMORY` from here."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, resource.RLIM_INFINITY))


def alarm(number: int, frame: object) -> None:
    raise Hang(f"over {CASE_S} s")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    warnings.simplefilter("error")
    corpus, rng, counts = seeds(), random.Random(options.seed), Counter[str]()
    signal.signal(signal.SIGALRM, alarm)
    kept = Path(tempfile.gettempdir()) / f"pagoda-fuzz-{options.seed}"
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "case.gguf"
        for sound in corpus:
            path.write_bytes(sound)
            assert read(path) == "sound", "a seed is damaged: the fuzzer would prove nothing"
        cap_memory()
        end = time.monotonic() + options.seconds
        while time.monotonic() < end:
            case = damage(corpus, rng)
            path.write_bytes(case)
            signal.setitimer(signal.ITIMER_REAL, CASE_S)
            try:
                counts[read(path)] += 1
            except (Exception, Hang) as error:
                counts["FAILED"] += 1
                failing = kept.with_suffix(f".{sum(counts.values())}.gguf")
                failing.write_bytes(case)
                traceback.print_exc()
                print(f"{type(error).__name__}: {error}: kept as {failing}", file=sys.stderr)
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
    print(f"fuzz_gguf seed {options.seed}: {sum(counts.values())} cases", dict(sorted(counts.items())))
    return 1 if counts["FAILED"] else 0


if __name__ == "__main__":
    sys.exit(main())
