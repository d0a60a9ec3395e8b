"""What quantised files do to a model: KL and top-1 agreement against the file they were made of, on this text.

    PYTHONPATH=src python benchmarks/quantize_quality.py REFERENCE.gguf MADE.gguf... [--text FILE] [--tokens N]

Mean KL(reference || made) and the part of places where both think the same token likeliest, over the next-token
distributions of a text, in sequences of 512 tokens; the last line is JSON. The text is this repository's own
documentation, so figures compare within one commit only. Knows the backend and the model; nothing of how files were
made.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
from kv_quality import Net, documentation, log_softmax

LENGTH = 512


def compare(reference: Net, made: Net, ids: list[int]) -> tuple[float, float]:
    """Mean KL, and agreement."""
    apart, same = 0.0, 0
    for at in range(0, len(ids), LENGTH):
        some = ids[at : at + LENGTH]
        feeds = (net.feed(net.store(len(some), "f16"), some, True) for net in (reference, made))
        for theirs, ours in zip(*feeds, strict=True):
            p, q = log_softmax(theirs), log_softmax(ours)
            apart += float((np.exp(p) * (p - q)).sum())
            same += int((p.argmax(-1) == q.argmax(-1)).sum())
    return apart / len(ids), same / len(ids)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("reference", type=Path)
    parser.add_argument("made", type=Path, nargs="+")
    parser.add_argument("--text", type=Path, help="default: this repository's documentation")
    parser.add_argument("--tokens", type=int, default=4096)
    args = parser.parse_args()
    reference = Net(args.reference, LENGTH)
    ids = list(reference.tokenizer.encode(args.text.read_text("utf-8"))) if args.text else documentation(reference)
    ids, report = ids[: args.tokens], {}
    print(f"{'file':32} {'mean KL':>9} {'top-1':>7}   ({len(ids)} tokens)")
    for path in args.made:
        apart, same = compare(reference, Net(path, LENGTH), ids)
        report[path.name] = {"kl": apart, "top1": same}
        print(f"{path.name:32} {apart:9.4f} {same:7.1%}", flush=True)
    print(json.dumps({"tokens": len(ids), **report}))


if __name__ == "__main__":
    main()
