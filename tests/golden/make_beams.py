"""Make beams.json: the lines that transformers' beam search finds in a tiny random model.

    pip install -e '.[golden,test]'            # or any place with torch, transformers, gguf
    PYTHONPATH=src:tests python tests/golden/make_beams.py

The model is `tiny.tiny_model` of fixed arguments, its weights dequantised by the `gguf` package and computed in float32
by transformers' LlamaForCausalLM: nothing of the search or of the model is Pagoda's. Each case has `generate`'s
arguments, and the sequences (without the prompt, cut after the token that ended them) and scores that came of them.
"""

from __future__ import annotations

import json
import random
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

GOLDEN = Path(__file__).with_name("beams.json")
SHAPE = {"layers": 2, "width": 64, "seed": 11, "liveliness": 2.0}
"""Of `tiny.TinyShape`."""
VOCABULARY = 320


def cases(count: int, seed: int) -> list[dict[str, Any]]:
    """Random arguments. Stop tokens are many, or a line of a random model would hardly ever end before its limit."""
    rng = random.Random(seed)
    made = []
    for i in range(count):
        beams = rng.choice([2, 3, 4, 6, 8])
        made.append(
            {
                "prompt": [rng.randrange(VOCABULARY) for _ in range(rng.randint(1, 24))],
                "beams": beams,
                "n": rng.randint(1, beams),
                "max_tokens": rng.choice([1, 2, 5, 12, 20]),
                "length_penalty": rng.choice([1.0, 1.0, 0.0, 2.0, 0.4, -1.5]),
                "early_stopping": (False, True, "never")[i % 3],
                "stops": sorted(rng.sample(range(VOCABULARY), rng.choice([0, 4, 12, 30, 60]))),
            }
        )
    return made


def searched(model: Path, wanted: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What transformers finds: `sequences` and `scores` of each case."""
    import gguf
    import torch
    from make_smollm2 import build

    reader = gguf.GGUFReader(model)
    net = build(reader, {key: field.contents() for key, field in reader.fields.items()})
    net.generation_config.pad_token_id = 0
    found = []
    for case in wanted:
        prompt = case["prompt"]
        with torch.inference_mode():
            out = net.generate(
                torch.tensor([prompt]),
                attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
                do_sample=False,
                num_beams=case["beams"],
                num_return_sequences=case["n"],
                max_new_tokens=case["max_tokens"],
                length_penalty=case["length_penalty"],
                early_stopping=case["early_stopping"],
                eos_token_id=case["stops"] or None,
                return_dict_in_generate=True,
                output_scores=True,
            )
        lines = [cut(row[len(prompt) :], case["stops"]) for row in out.sequences.tolist()]
        found.append({"sequences": lines, "scores": [round(score, 5) for score in out.sequences_scores.tolist()]})
    return found


def cut(line: list[int], stops: list[int]) -> list[int]:
    """Up to the first stop token: what follows is padding."""
    end = next((i + 1 for i, token in enumerate(line) if token in stops), len(line))
    return line[:end]


def main() -> None:
    """Write the file."""
    from tiny import tiny_model

    wanted = cases(60, seed=1)
    with tempfile.TemporaryDirectory() as directory:
        found = searched(tiny_model(Path(directory), **SHAPE), wanted)
    rows = ",\n".join(json.dumps(case | line) for case, line in zip(wanted, found, strict=True))
    versions = " ".join(f"{name}=={version(name)}" for name in ("torch", "transformers", "gguf"))
    GOLDEN.write_text(f'{{"versions": "{versions}", "cases": [\n{rows}\n]}}\n')
    ended = sum(
        len(line) < case["max_tokens"] for case, each in zip(wanted, found, strict=True) for line in each["sequences"]
    )
    print(f"{GOLDEN}: {len(found)} cases, {ended} lines that ended before their limit")


if __name__ == "__main__":
    main()
