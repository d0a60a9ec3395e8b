"""What each KV format does to the default model over long contexts: KL, needles found, endless repetition.

    PYTHONPATH=src python benchmarks/kv_quality.py [MODEL.gguf] [--quick]       # a table; the last line is JSON

The measures, the text and the limits are the gate's (`pagoda eval`, docs/quality.md); here all formats stand side by
side, and no verdict is kept.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import asdict

from pagoda.catalog import open_model
from pagoda.gate.bench import Bench, Wanted

FORMATS = ("int8", "int4")


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="smollm2", help="default: the built-in SmolLM2-135M-Instruct")
    parser.add_argument("--quick", action="store_true", help="a third of it, to see that it runs")
    args = parser.parse_args()
    began, used = time.monotonic(), time.process_time()
    with open_model(args.model) as file:
        bench = Bench(args.model, file, (args.model, file), Wanted(FORMATS, quick=args.quick))
        reference, verdicts = bench.judge([bench.subject(None, each) for each in FORMATS])
    columns = [("f16", reference), *((v.kv_format, v.lengths) for v in verdicts)]
    print(f"{'tokens':>7} {'KV':6} {'mean KL':>9} {'same':>7} {'needles':>8} {'loops':>6}")
    for i, length in enumerate(at.tokens for at in reference):
        for name, lengths in columns:
            at = lengths[i]
            found, looped = f"{at.needles}/{at.of_needles}", f"{at.loops}/{at.of_loops}"
            print(f"{length:7} {name:6} {at.divergence:9.2e} {at.agreement:7.1%} {found:>8} {looped:>6}")
    report = {
        "formats": {name: list(map(asdict, lengths)) for name, lengths in columns},
        "passed": {v.kv_format: v.passed for v in verdicts},
        "seconds": round(time.monotonic() - began, 1),
        "cpu_seconds": round(time.process_time() - used, 1),
    }
    print(json.dumps(report))


if __name__ == "__main__":
    main()
