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
# Letters that have cases, of the scripts that DeepSeek's first tokenizer names.
_CASED = (
    "A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-\u1f7d"
    "\u1f80-\u1fb4\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3\u1fd6-\u1fdb\u1fe0-\u1fec\u1ff2-\u1ff4\u1ff6-\u1ffc"
    "ℂℇℊ-ℓℕℙ-ℝℤ\u2126ℨ\u212a-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿ"
    "ﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃"
)
_DEEPSEEK = (
    r"[\r\n]",
    rf"\s?[{_CASED}]+",
    "\\s?[!-/:-~！-／：-～‘-‟\u3000-。]+",
    r"\s+$",
    "[一-龥ࠀ-一가-\ud7ff]+",
    r"\p{N}+",
)
_SEED_CODER = rf"(?i:{_ENDINGS})|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|{_LINES}"
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
    **dict.fromkeys(("dbrx", "smaug-bpe"), _LLAMA3_WORDS),
    **dict.fromkeys(("glm4", "chatglm-bpe"), PreTokenizer((_LLAMA3,), whole_words=True)),
    "qwen2": _QWEN_NFC,
    "qwen35": PreTokenizer((_QWEN35,), nfc=True),
    **dict.fromkeys(("deepseek-r1-qwen", "megrez", "kormo", "hunyuan", "grok-2"), _QWEN_PLAIN),
    **dict.fromkeys(("gpt-4o", "llama4", "kanana2"), PreTokenizer((_GPT4O,), whole_words=True)),
    "tekken": PreTokenizer((_TEKKEN,), whole_words=True, add_bos=True),
    **dict.fromkeys(("deepseek-v3", "hunyuan-dense"), PreTokenizer(_DEEPSEEK3)),
    "deepseek-llm": PreTokenizer(_DEEPSEEK),
    "deepseek-coder": PreTokenizer(_DEEPSEEK_CODER),
    **dict.fromkeys(("bloom", "poro-chat", "gpt3-finnish"), _BLOOM_WORDS),
    "seed-coder": PreTokenizer((_SEED_CODER,)),
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
