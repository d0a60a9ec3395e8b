"""Make golden/*.npz: what transformers says about a sequence of each tiny model of `tiny_families`, in float32.

    pip install torch transformers safetensors         # and Pagoda's own tests' requirements
    PYTHONPATH=src:tests python tests/families/make_families.py [NAME ...]

Nothing of Pagoda computes here: the checkpoint is written as published ones are (config.json, model.safetensors under
the published names), and transformers reads and runs it, with eager attention. Each file holds `logits` [48, 272],
float32, and the `versions` that made it.
"""

from __future__ import annotations

import json
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

import numpy as np
import torch
from safetensors.numpy import save_file
from transformers import AutoModelForCausalLM

from families.tiny_families import CONFIGS, ids, weights

GOLDEN = Path(__file__).with_name("golden")


def logits(name: str) -> np.ndarray:
    with tempfile.TemporaryDirectory() as directory:
        (Path(directory) / "config.json").write_text(json.dumps(CONFIGS[name]))
        save_file(weights(CONFIGS[name]), Path(directory) / "model.safetensors", {"format": "pt"})
        model, info = AutoModelForCausalLM.from_pretrained(
            directory, dtype=torch.float32, attn_implementation="eager", output_loading_info=True
        )
        assert not info["missing_keys"], info
        assert not info["unexpected_keys"], info
        with torch.inference_mode():
            return model.eval()(torch.tensor([ids()])).logits[0].numpy()


if __name__ == "__main__":
    versions = f"torch {version('torch')}, transformers {version('transformers')}"
    for each in sys.argv[1:] or CONFIGS:
        found = logits(each)
        np.savez_compressed(GOLDEN / f"{each}.npz", logits=found, versions=versions)
        print(each, found.shape, f"deviation {found.std():.2f}", (GOLDEN / f"{each}.npz").stat().st_size, "bytes")
