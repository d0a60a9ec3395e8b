"""Mutation fuzzer for Hugging Face directories: damaged ones may raise `PagodaError` and nothing else.

    PYTHONPATH=src:tests python tests/fuzz_hf.py --seconds 20 --seed 1

Starts from sound directories (one safetensors file, and shards; byte-level tokens, and SentencePiece's; dense, and
quantised in every layout), damages one of their files, by bytes or by values of its JSON, and opens it: headers,
hyperparameters against tensors, every number, tokenizer, one encoding. A case fails if any other exception or a
warning comes out, or if it takes over `CASE_S` seconds. The last line has counts.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

from families.tiny_families import CONFIGS, weights
from fuzz_gguf import CASE_S, Hang, alarm, damage
from hf_files import byte_fallback, write_model
from pagoda.catalog import open_model
from pagoda.errors import PagodaError
from pagoda.models import read_config
from pagoda.text.tokenizer import Tokenizer
from quantised_files import KINDS

ODD: tuple[Any, ...] = (
    None, True, 0, -1, 1, 7, 2**31, 2**63, 2**64, 1e308, -0.5, float("nan"), "", "x", "<0x41>", "linear", "yarn",
    "llama3", "longrope", [], [1], [None], ["a", "b"], {}, {"a": 1}, [[]],
)  # fmt: skip


QUANTISED = (
    "awq-32",
    "gptq-act-order",
    "gptq-8-asym",
    "packed-asym",
    "packed-act-order",
    "int8",
    "fp8-block",
    "float-channel",
)


def seeds(directory: Path) -> list[Path]:
    """Sound directories."""
    made = []
    for name, shards in (("llama3", 1), ("gemma3", 2), ("phi3-long", 1), ("olmoe", 1), ("qwen2-yarn", 1)):
        path = directory / name
        made.append(write_model(path, CONFIGS[name], weights(CONFIGS[name]), "BF16", shards))
    byte_fallback().save(str(made[1] / "tokenizer.json"))
    return made + [KINDS[name].checkpoint().write(directory / name) for name in QUANTISED]


def places(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The path to every value of some JSON; of long lists and objects, a few."""
    found = [at]
    items: list[Any] = (
        list(value.items()) if isinstance(value, dict) else list(enumerate(value)) if isinstance(value, list) else []
    )
    for key, each in items[:40] + items[-5:]:
        found += places(each, (*at, key))
    return found


def change_value(text: str, rng: random.Random) -> str:
    """Replace, drop or copy one value."""
    value = json.loads(text)
    *way, last = rng.choice([place for place in places(value) if place])
    parent = value
    for key in way:
        parent = parent[key]
    kind = rng.random()
    if kind < 0.15:
        del parent[last]
    elif kind < 0.3 and isinstance(parent, dict):
        parent[last] = parent[rng.choice(list(parent))]
    else:
        parent[last] = rng.choice(ODD)
    return json.dumps(value)


def change(path: Path, rng: random.Random) -> str:
    """Damage one file of a directory; which."""
    file = rng.choice(sorted(p for p in path.iterdir() if p.is_file()))
    if file.suffix == ".json" and rng.random() < 0.8:
        file.write_text(change_value(file.read_text(), rng))
    elif file.suffix == ".safetensors" and rng.random() < 0.7:
        raw = file.read_bytes()
        length = int.from_bytes(raw[:8], "little")
        header = change_value(raw[8 : 8 + length].decode(), rng).encode()
        file.write_bytes(len(header).to_bytes(8, "little") + header + raw[8 + length :])
    else:
        file.write_bytes(damage([file.read_bytes()], rng))
    return file.name


def read(path: Path) -> str:
    """Open a directory; what came of it, in a word. Raises whatever should not have come out."""
    try:
        with open_model(path) as source:
            config = read_config(source)
            for batch in source.batches(config.tensors()):
                for tensor in batch:
                    assert tensor.floats().shape == tensor.shape
            tokenizer = Tokenizer.from_metadata(source.metadata)
            tokenizer.encode_prompt("hello there <|end|> 世界")
        return "sound"
    except PagodaError as error:
        return type(error).__name__


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    warnings.simplefilter("error")
    rng, counts = random.Random(options.seed), Counter[str]()
    signal.signal(signal.SIGALRM, alarm)
    with tempfile.TemporaryDirectory() as directory:
        corpus = seeds(Path(directory))
        for sound in corpus:
            assert read(sound) == "sound", "a seed is damaged: the fuzzer would prove nothing"
        case, end = Path(directory) / "case", time.monotonic() + options.seconds
        while time.monotonic() < end:
            shutil.rmtree(case, ignore_errors=True)
            shutil.copytree(rng.choice(corpus), case)
            changed = change(case, rng)
            signal.setitimer(signal.ITIMER_REAL, CASE_S)
            try:
                counts[read(case)] += 1
            except (Exception, Hang) as error:
                counts["FAILED"] += 1
                kept = Path(tempfile.gettempdir()) / f"pagoda-fuzz-hf-{options.seed}-{sum(counts.values())}"
                shutil.copytree(case, kept, dirs_exist_ok=True)
                traceback.print_exc()
                print(f"{type(error).__name__}: {error}: {changed}, kept in {kept}", file=sys.stderr)
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
    print(f"fuzz_hf seed {options.seed}: {sum(counts.values())} cases", dict(sorted(counts.items())))
    return 1 if counts["FAILED"] else 0


if __name__ == "__main__":
    sys.exit(main())
