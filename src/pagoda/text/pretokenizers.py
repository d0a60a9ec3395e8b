"""How byte-level vocabularies cut text into words, by the name that the model file gives.

The merges of a vocabulary were learned inside such words, so the cut is part of the model: with another one the ids
are wrong. Patterns are Oniguruma regular expressions, applied in order, each to the pieces that the one before left;
what a pattern matches becomes a word of its own, and so does what lies between matches. They are those of the models'
own published tokenizers; the names are the ones converters write into `tokenizer.ggml.pre`.
"""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches

from pagoda.errors import UnsupportedModel


@dataclass(frozen=True, slots=True)
class PreTokenizer:
    """One way to cut text into words, and what goes with it."""

    patterns: tuple[str, ...]
    nfc: bool = False
    """Whether text is put into Unicode normalization form C first."""
    whole_words: bool = False
    """Whether a word that is a token stays whole, whatever the merges would make of it."""
    add_bos: bool = False
    """Whether prompts begin with the BOS token, if the file does not say."""


# Blanks at the end of a run go with the next word: `\s+(?!\S)` leaves the last one to it.
_SPACES = r"\s+(?!\S)|\s+"
_LINES = rf"\s*[\r\n]+|{_SPACES}"
_ENDINGS = "'s|'t|'re|'ve|'m|'ll|'d"
_GPT2 = rf"{_ENDINGS}| ?\p{{L}}+| ?\p{{N}}+| ?[^\s\p{{L}}\p{{N}}]+|{_SPACES}"
_DIGIT = r"\p{N}"
_LLAMA3 = rf"(?i:{_ENDINGS})|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_LINES}"
_QWEN2 = rf"(?i:{_ENDINGS})|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_LINES}"
_QWEN35 = (
    rf"(?i:{_ENDINGS})|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}"
    rf"| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_LINES}"
)
# Words in capitals, then words with small letters at the end: `HTMLParser` is cut before `Parser`.
_UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_LEAD = r"[^\r\n\p{L}\p{N}]?"
_GPT4O = (
    rf"{_LEAD}{_UPPER}*{_LOWER}+(?i:{_ENDINGS})?|{_LEAD}{_UPPER}+{_LOWER}*(?i:{_ENDINGS})?"
    rf"|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_LINES}"
)
_TEKKEN = rf"{_LEAD}{_UPPER}*{_LOWER}+|{_LEAD}{_UPPER}+{_LOWER}*|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_LINES}"
_DEEPSEEK3 = (
    r"\p{N}{1,3}",
    "[一-龥぀-ゟ゠-ヿ]+",
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    rf"| ?[\p{{P}}\p{{S}}]+[\r\n]*|{_LINES}",
)
_DEEPSEEK_CODER = (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-퟿]+", _DIGIT)
_BLOOM = r" ?[^(\s|.,!?…。，、।۔،)]+"

_PLAIN = PreTokenizer((_GPT2,))
_NEOX = PreTokenizer((_GPT2,), nfc=True)
_DIGITS = PreTokenizer((_DIGIT, _GPT2))
_COHERE = PreTokenizer((_DIGIT, _GPT2), nfc=True)
_LLAMA3_WORDS = PreTokenizer((_LLAMA3,))
_LLAMA3_WHOLE = PreTokenizer((_LLAMA3,), whole_words=True, add_bos=True)
_QWEN_NFC = PreTokenizer((_QWEN2,), nfc=True)
_QWEN_PLAIN = PreTokenizer((_QWEN2,))
_BLOOM_WORDS = PreTokenizer((_BLOOM,))

PRE_TOKENIZERS: dict[str, PreTokenizer] = {
    **dict.fromkeys(("", "default", "gpt-2", "phi-2", "gigachat", "a.x-4.0", "mellum", "exaone4", "trillion"), _PLAIN),
    **dict.fromkeys(("jais", "granite-docling"), _PLAIN),
    **dict.fromkeys(("mpt", "olmo"), _NEOX),
    **dict.fromkeys(("smollm", "starcoder", "refact", "codeshell", "exaone", "minerva-7b", "mellum2"), _DIGITS),
    "command-r": _COHERE,
    **dict.fromkeys(("llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral"), _LLAMA3_WHOLE),
    **dict.fromkeys(("midm-2.0", "lfm2"), _LLAMA3_WHOLE),
    **dict.fromkeys(("dbrx", "smaug-bpe", "glm4", "chatglm-bpe"), _LLAMA3_WORDS),
    "qwen2": _QWEN_NFC,
    "qwen35": PreTokenizer((_QWEN35,), nfc=True),
    **dict.fromkeys(("deepseek-r1-qwen", "megrez", "kormo", "hunyuan", "grok-2"), _QWEN_PLAIN),
    "gpt-4o": PreTokenizer((_GPT4O,)),
    **dict.fromkeys(("llama4", "kanana2"), PreTokenizer((_GPT4O,))),
    "tekken": PreTokenizer((_TEKKEN,), whole_words=True, add_bos=True),
    **dict.fromkeys(("deepseek-v3", "hunyuan-dense"), PreTokenizer(_DEEPSEEK3)),
    "deepseek-coder": PreTokenizer(_DEEPSEEK_CODER),
    **dict.fromkeys(("bloom", "poro-chat", "gpt3-finnish"), _BLOOM_WORDS),
    "viking": PreTokenizer((_BLOOM, _DIGIT)),
}
"""By name; an absent name means GPT-2's own."""


def pre_tokenizer(name: str) -> PreTokenizer:
    """Look one up.

    Raises:
        UnsupportedModel: no such name; the message gives the nearest known ones.
    """
    found = PRE_TOKENIZERS.get(name)
    if found is None:
        near = get_close_matches(name, [known for known in PRE_TOKENIZERS if known], n=3, cutoff=0.0)
        raise UnsupportedModel(
            f"the pre-tokenizer {name!r} (tokenizer.ggml.pre) is not known, so token ids would be wrong; "
            f"the nearest known names are {', '.join(near)}"
        )
    return found
