"""Writes Hugging Face directories: tiny models of every family, tokenizers made with the `tokenizers` library."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from families.tiny_families import VOCABULARY, Floats
from pagoda.text.bytelevel import BYTES

LLAMA3_CUT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
TEMPLATE = "{% for m in messages %}<|user|>{{ m['content'] }}<|end|>{% endfor %}"


def tensor_bytes(values: Floats, dtype: str) -> bytes:
    if dtype == "BF16":  # the upper half, rounded to nearest even
        bits = np.ascontiguousarray(values).view(np.uint32)
        return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16).tobytes()
    return values.astype({"F32": np.float32, "F16": np.float16}[dtype]).tobytes()


def safetensors(tensors: Mapping[str, Floats], dtype: str = "F32", changes: Mapping[str, Any] | None = None) -> bytes:
    """A file's bytes; `changes` replace entries of the header."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    data = b""
    for name, values in tensors.items():
        raw = tensor_bytes(values, dtype)
        header[name] = {"dtype": dtype, "shape": list(values.shape), "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header | dict(changes or {})).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + data


def write_model(
    directory: Path, config: Mapping[str, Any], tensors: Mapping[str, Floats], dtype: str = "F32", shards: int = 1
) -> Path:
    """A whole directory, with a tokenizer."""
    directory.mkdir(exist_ok=True)
    (directory / "config.json").write_text(json.dumps(config))
    (directory / "generation_config.json").write_text(json.dumps({"bos_token_id": 0, "eos_token_id": [1, 2]}))
    byte_level().save(str(directory / "tokenizer.json"))
    (directory / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<|begin|>", "eos_token": "<|end|>"}))
    (directory / "chat_template.jinja").write_text(TEMPLATE)
    names = list(tensors)
    if shards == 1:
        (directory / "model.safetensors").write_bytes(safetensors(tensors, dtype))
        return directory
    places = {}
    for i in range(shards):
        file, mine = f"model-{i + 1:05}-of-{shards:05}.safetensors", names[i::shards]
        (directory / file).write_bytes(safetensors({name: tensors[name] for name in mine}, dtype))
        places |= dict.fromkeys(mine, file)
    (directory / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))
    return directory


def byte_level(cut: str = LLAMA3_CUT, whole: bool = True, nfc: bool = False) -> Tokenizer:
    """A byte-level BPE of the vocabulary's size: three control tokens, 256 bytes, a few merges."""
    letters = list(BYTES)
    merges = [("h", "e"), ("l", "l"), ("he", "ll"), ("Ġ", "t"), ("hell", "o"), ("1", "2")]
    specials = ["<|begin|>", "<|end|>", "<|user|>"]
    ids = {token: i for i, token in enumerate([*specials, *letters, *(a + b for a, b in merges)])}
    tokenizer = Tokenizer(models.BPE(vocab=ids, merges=merges, ignore_merges=whole))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(cut), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    if nfc:
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.decoder = decoders.ByteLevel()
    return with_specials(tokenizer, specials)


def byte_fallback() -> Tokenizer:
    """As converters make it of a SentencePiece model: no words are cut, blanks are a visible character."""
    specials = ["<|begin|>", "<|end|>", "<|user|>"]
    merges = [
        ("▁", "t"), ("h", "e"), ("▁t", "he"), ("t", "he"), ("l", "l"), ("he", "ll"), ("▁", "h"), ("▁", "hell"),
        ("hell", "o"), ("▁hell", "o"),
    ]  # fmt: skip
    pieces = dict.fromkeys([*"▁thelor", *(a + b for a, b in merges)])
    tokens = [*specials, *(f"<0x{byte:02X}>" for byte in range(256))]
    # As many bytes as the vocabulary holds: the last ones are in no UTF-8.
    tokens = [*specials, *pieces, *tokens[3 : VOCABULARY - len(pieces)]]
    model = models.BPE(
        vocab={token: i for i, token in enumerate(tokens)}, merges=merges, byte_fallback=True, fuse_unk=True,
        unk_token="<|user|>",
    )  # fmt: skip
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    return with_specials(tokenizer, specials)


def unigram(squeeze: bool) -> Tokenizer:
    """As T5's: EOS after a text."""
    specials = ["<|begin|>", "<|end|>", "<|user|>"]
    pieces = {"▁": -2.0, "▁the": -1.0, "▁he": -3.0, "he": -2.5, "ll": -2.5, "hell": -4.0, "o": -3.0, "t": -5.0}
    pieces |= {letter: -6.0 - i for i, letter in enumerate("helrmab")}
    vocabulary = [*((text, 0.0) for text in specials), *(p for p in pieces.items() if p[0] not in specials)]
    tokenizer = Tokenizer(models.Unigram(vocabulary, 2))
    if squeeze:
        tokenizer.normalizer = normalizers.Sequence(
            [normalizers.Strip(), normalizers.Replace(Regex(" {2,}"), " ")]
        )  # fmt: skip
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="always" if squeeze else "never")
    made = with_specials(tokenizer, specials)
    made.post_processor = processors.TemplateProcessing(single="$A <|end|>", special_tokens=[("<|end|>", 1)])
    return made


def wordpiece(lower: bool) -> Tokenizer:
    """As BERT's."""
    specials = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    words = ["the", "hello", "Hello", "hé", "##llo", "un", "##aff", "##able", ",", "[", "]", "m", "##ask", "MASK", "x"]
    ids = {word: i for i, word in enumerate([*specials, *words])}
    tokenizer = Tokenizer(models.WordPiece(ids, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=lower)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made = with_specials(tokenizer, specials)
    made.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    return made


def with_specials(tokenizer: Tokenizer, specials: Iterable[str]) -> Tokenizer:
    """Mark tokens 0, 1 and so on as special, and have prompts begin with the first."""
    value = json.loads(tokenizer.to_str())
    specials = list(specials)
    value["added_tokens"] = [
        {"id": i, "content": text, "special": True, "single_word": False, "lstrip": False, "rstrip": False,
         "normalized": False}
        for i, text in enumerate(specials)
    ]  # fmt: skip
    made = Tokenizer.from_str(json.dumps(value))
    made.post_processor = processors.TemplateProcessing(
        single=f"{specials[0]} $A", pair=f"{specials[0]} $A $B", special_tokens=[(specials[0], 0)]
    )
    assert made.get_vocab_size() <= VOCABULARY
    return made
