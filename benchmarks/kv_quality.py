"""What a KV format does to answers over long contexts, on the default model: KL, needles found, endless repetition.

    PYTHONPATH=src python benchmarks/kv_quality.py [MODEL.gguf] [--quick]       # a table; the last line is JSON

- KL: mean KL(f16 || format) over the next-token distributions of a text of 4,000 tokens.
- Needles: a sentence with a number, at several depths of a long text, and the number asked for at the end.
- Loops: continuations at 8,000 tokens that end in a cycle: the last 48 tokens repeat with a period of at most 24.

The text is this repository's own documentation, so figures compare within one commit only. All formats share one set of
packed weights. Knows the backend and the model; nothing of engine and cache, which change no bit.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from pagoda import catalog
from pagoda.backends.cpu import CpuBackend, rope_table
from pagoda.backends.ops import Draw, Floats, KVStore, Step
from pagoda.catalog import ModelFile
from pagoda.models import build, read_config
from pagoda.runner.runner import whole_model
from pagoda.text.tokenizer import Tokenizer

ROOT = Path(__file__).resolve().parent.parent
FORMATS = ("f16", "int8", "int4")
PAGE, CHUNK = 16, 256
CYCLE, TAIL = 24, 48
"""Longest period that counts as a loop, and how many last tokens must have it."""

Doubles = npt.NDArray[np.float64]


class Net:
    """The default model; KV stores of any format beside each other."""

    def __init__(self, path: Path, positions: int) -> None:
        self.backend = CpuBackend()
        with ModelFile(path) as source:
            self.tokenizer = Tokenizer.from_metadata(source.metadata)
            config = read_config(source)
            self.model = build(source, config, self.backend.weights, rope_table, positions)
        self.program = self.backend.program(lambda ops: whole_model(self.model, ops))

    def store(self, tokens: int, kv_format: str) -> KVStore:
        """Pages for this many tokens."""
        return self.backend.kv_store(self.model.groups, [-(-tokens // PAGE)], PAGE, kv_format)

    def feed(self, kv: KVStore, ids: Sequence[int], sample: bool) -> Iterator[Floats]:
        """One sequence from position 0 in chunks: each chunk's logits, of all rows or (not `sample`) of its last."""
        for start in range(0, len(ids), CHUNK):
            end = min(len(ids), start + CHUNK)
            step = Step(
                ids=np.array(ids[start:end], np.int32),
                positions=np.arange(start, end, dtype=np.int32),
                sequences=np.zeros(end - start, np.int32),
                tables=(np.arange(-(-end // PAGE), dtype=np.int32)[None],),
                sampled=np.arange(0 if sample else end - start - 1, end - start, dtype=np.int32),
            )
            yield self.program.run(kv, step)["logits"]

    def continue_from(
        self, kv: KVStore, past: int, first: int, count: int, tokens: int, temperature: float
    ) -> list[list[int]]:
        """`count` continuations of a sequence whose `past` positions are stored and whose last token is `first`.

        They share the stored pages and write on in pages of their own, so `past` is a multiple of the page size.
        """
        assert past % PAGE == 0
        own, shared = -(-tokens // PAGE), past // PAGE
        table = np.array(
            [[*range(shared), *range(shared + i * own, shared + (i + 1) * own)] for i in range(count)], np.int32
        )
        slots = self.backend.slots()
        draws = [Draw(i, i + 1, 0, 0, temperature, 1.0, 0.0, 1.0, 0.0, 0.0, 0, -1) for i in range(count)]
        outputs: list[list[int]] = [[] for _ in range(count)]
        for t in range(tokens):
            step = Step(
                ids=np.full(count, first if t == 0 else -1, np.int32),
                positions=np.full(count, past + t, np.int32),
                sequences=np.arange(count, dtype=np.int32),
                tables=(table,),
                sampled=np.arange(count, dtype=np.int32),
                inputs={},
                slots=np.arange(count, dtype=np.int32),
                starts=tuple((i, np.zeros(0, np.int32)) for i in range(count)) if t == 0 else (),
            )
            at = [replace(d, position=past + t + 1) for d in draws]
            for output, token in zip(outputs, self.program.submit(kv, step, slots, at).wait().tokens, strict=True):
                output.append(token)
        return outputs


def log_softmax(logits: Floats) -> Doubles:
    wide = logits.astype(np.float64)
    wide -= wide.max(-1, keepdims=True)
    result: Doubles = wide - np.log(np.exp(wide).sum(-1, keepdims=True))
    return result


def divergences(net: Net, ids: Sequence[int]) -> dict[str, float]:
    """Mean KL(f16 || format) over all positions; the formats are fed in step, a chunk at a time."""
    sums = dict.fromkeys(FORMATS, 0.0)
    feeds = [net.feed(net.store(len(ids), f), ids, True) for f in FORMATS]
    for chunk in zip(*feeds, strict=True):
        theirs = log_softmax(chunk[0])
        weight = np.exp(theirs)
        for kv_format, logits in zip(FORMATS[1:], chunk[1:], strict=True):
            sums[kv_format] += float((weight * (theirs - log_softmax(logits))).sum())
    return {f: s / len(ids) for f, s in sums.items()}


def needles(net: Net, text: Sequence[int], lengths: Sequence[int], depths: int) -> dict[str, str]:
    """How many numbers were found again, of how many, by greedy decoding."""
    found, asked = dict.fromkeys(FORMATS, 0), 0
    rng = np.random.default_rng(7)
    encode = net.tokenizer.encode
    question = encode("\n\nQuestion: What is the secret number?\nAnswer: The secret number is")
    for length in lengths:
        for depth in range(depths):
            number = str(rng.integers(10000, 99999))
            needle = encode(f"\n\nRemember this: the secret number is {number}.\n\n")
            cut = (length - len(needle) - len(question)) * (2 * depth + 1) // (2 * depths)
            rest = length - len(needle) - len(question) - cut
            ids = [*text[:cut], *needle, *text[cut : cut + rest], *question]
            ids = ids[(len(ids) - 1) % PAGE :]  # all but the last token fill whole pages
            asked += 1
            for kv_format in FORMATS:
                kv = net.store(len(ids) + PAGE, kv_format)
                for _ in net.feed(kv, ids[:-1], False):
                    pass
                (answer,) = net.continue_from(kv, len(ids) - 1, ids[-1], 1, 10, 0.0)
                said = b"".join(net.tokenizer.token_bytes(t) for t in answer).decode(errors="replace")
                found[kv_format] += number in said
    return {f: f"{n}/{asked}" for f, n in found.items()}


def loops(output: Sequence[int]) -> bool:
    """Whether the last `TAIL` tokens repeat with a period of at most `CYCLE`."""
    tail = output[-TAIL - CYCLE :]
    return any(all(tail[-i] == tail[-i - p] for i in range(1, TAIL + 1)) for p in range(1, CYCLE + 1))


def repetition(net: Net, text: Sequence[int], past: int, count: int, tokens: int) -> dict[str, str]:
    """Continuations that end in a loop, of how many: one greedy, the others at temperature 0.5."""
    result = {}
    for kv_format in FORMATS:
        kv = net.store(past + (count + 1) * (tokens + PAGE), kv_format)
        for _ in net.feed(kv, text[:past], False):
            pass
        outputs = net.continue_from(kv, past, text[past], count, tokens, 0.5)
        outputs += net.continue_from(kv, past, text[past], 1, tokens, 0.0)
        result[kv_format] = f"{sum(map(loops, outputs))}/{len(outputs)}"
    return result


def documentation(net: Net) -> list[int]:
    pages = [*sorted(ROOT.glob("docs/**/*.md")), ROOT / "CONTRIBUTING.md"]
    return list(net.tokenizer.encode("\n\n".join(p.read_text("utf-8") for p in pages)))


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, nargs="?", help="default: the built-in SmolLM2-135M-Instruct")
    parser.add_argument("--quick", action="store_true", help="a tenth of it, to see that it runs")
    args = parser.parse_args()
    kl, lengths, depths, past, count, tokens = (
        (512, (400,), 2, 768, 2, 80) if args.quick else (4000, (1000, 3000, 7900), 3, 7680, 5, 256)
    )
    began = time.monotonic()
    net = Net(args.model or catalog.resolve("smollm2"), past + tokens + PAGE)
    text = documentation(net)
    if len(text) < max(kl, past + 1):
        parser.error(f"the documentation has {len(text)} tokens, and {max(kl, past + 1)} are needed")
    print(f"mean KL over {kl} tokens: {(away := divergences(net, text[:kl]))}", flush=True)
    print(f"needles in {lengths}: {(found := needles(net, text, lengths, depths))}", flush=True)
    print(f"loops at {past} + {tokens}: {(looped := repetition(net, text, past, count, tokens))}", flush=True)
    print(f"{'KV':6} {'mean KL':>10} {'needles':>8} {'loops':>6}   ({kl} tokens; {lengths}; {past} + {tokens})")
    for f in FORMATS:
        print(f"{f:6} {away[f]:10.2e} {found[f]:>8} {looped[f]:>6}")
    report = {"kl": away, "needles": found, "loops": looped, "seconds": round(time.monotonic() - began, 1)}
    print(json.dumps(report))


if __name__ == "__main__":
    main()
