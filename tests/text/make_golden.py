"""Make golden_smollm2.json: token ids of the corpus and of some chats by `transformers`, the independent judge.

Needs `pip install transformers==5.24.0` (no torch) and the model file:
    python -m tests.text.make_golden path/to/smollm2.gguf
The last line it prints is JSON. Two things in transformers' reading of this file are not the model's, and are set
right here as in the model's own tokenizer.json: its table of pre-tokenizers lacks `smollm` (each digit by itself, then
GPT-2's words), and it gives the vocabulary an unknown token.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Mapping
from pathlib import Path

from tokenizers import Tokenizer, pre_tokenizers
from transformers import PreTrainedTokenizerFast, __version__
from transformers.integrations.gguf.gguf_tokenizer_mapping import GGUF_TOKENIZER_MAPPING, convert_gguf_tokenizer

from pagoda.catalog import ModelFile

from .corpus import CHATS, CORPUS


def build(metadata: Mapping[str, object]) -> Tokenizer:
    names = GGUF_TOKENIZER_MAPPING["tokenizer"]
    fields = {name: metadata[f"tokenizer.{key}"] for key, name in names.items() if f"tokenizer.{key}" in metadata}
    assert fields["pre_tokenizer_type"] == "smollm"
    tokenizer, _ = convert_gguf_tokenizer(str(metadata["general.architecture"]), fields)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.model.unk_token = None
    return tokenizer


def encode(tokenizer: Tokenizer, special: bool) -> list[list[int]]:
    tokenizer.encode_special_tokens = not special
    ids = [tokenizer.encode(text, add_special_tokens=False).ids for text in CORPUS]
    tokenizer.encode_special_tokens = False
    return ids


def main(path: Path) -> None:
    with ModelFile(path) as file:
        metadata = file.metadata
    tokenizer = build(metadata)
    chat = PreTrainedTokenizerFast(tokenizer_object=tokenizer, chat_template=metadata["tokenizer.chat_template"])
    golden = {
        "transformers": __version__,
        "corpus": hashlib.sha256(json.dumps(CORPUS).encode()).hexdigest(),
        "plain": encode(tokenizer, special=False),
        "special": encode(tokenizer, special=True),
        "chats": [
            chat.apply_chat_template(list(messages), add_generation_prompt=True, return_dict=False)
            for messages in CHATS
        ],
    }
    target = Path(__file__).with_name("golden_smollm2.json")
    target.write_text(json.dumps(golden, separators=(",", ":")) + "\n")
    tokens = sum(map(len, golden["plain"]))
    print(json.dumps({"texts": len(CORPUS), "tokens": tokens, "bytes": target.stat().st_size}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
