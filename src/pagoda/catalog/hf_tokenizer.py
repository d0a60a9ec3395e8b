"""A Hugging Face tokenizer (tokenizer.json and its companions) in GGUF's words: `tokenizer.ggml.*` and the template.

Knows the layout of those files. Byte-level BPE is recognised by the patterns that cut words, BPE that came from
SentencePiece by its byte fallback; unigram models and BERT's WordPiece by their names. What is done to the text in any
other way is refused: token ids would be wrong.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NoReturn

from pagoda.errors import ModelFileError, UnsupportedModel
from pagoda.text.pretokenizers import PRE_TOKENIZERS
from pagoda.text.vocabulary import PREFIX, Kind

_GPT2 = PRE_TOKENIZERS[""].patterns[0]
_MOST_TOKENS = 2**24
Json = Mapping[str, Any]


def translate_tokenizer(
    tokenizer: Json, config: Json, generation: Json, template: str | None, rows: int, path: str
) -> dict[str, object]:
    """Metadata as a GGUF file has it.

    Args:
        tokenizer: tokenizer.json.
        config: tokenizer_config.json, or empty.
        generation: config.json and generation_config.json joined, the latter first.
        template: chat_template.jinja's content, if there is that file.
        rows: of the embedding: ids up to it are filled in as unused.
        path: for messages.

    Raises:
        ModelFileError: it contradicts itself.
        UnsupportedModel: tokens of another kind.
    """
    model = tokenizer.get("model")
    kind = (model.get("type") or "BPE") if isinstance(model, dict) else model
    if not isinstance(model, dict) or kind not in ("BPE", "Unigram", "WordPiece"):
        raise UnsupportedModel(f"{path}: its tokenizer is of type {kind!r:.40}; BPE, Unigram and WordPiece can be read")
    vocabulary, scores = _vocabulary(model, kind, path)
    tokens, kinds = _tokens(vocabulary, _added(tokenizer, path), rows, path)
    ids, own = {token: i for i, token in enumerate(tokens)}, tokens
    values: dict[str, object] = {}
    if kind == "Unigram":
        values |= _unigram(tokenizer, scores, rows, path)
    elif kind == "WordPiece":
        values |= {"model": "bert", "lowercase": _lowercase(tokenizer, path)}
        tokens = [_word(t, model) if k == Kind.NORMAL else t for t, k in zip(tokens, kinds, strict=True)]
    else:
        merges = _merges(model.get("merges"), path)
        if model.get("byte_fallback"):
            values |= {"model": "llama", "scores": _scores(tokens, merges, ids), "add_space_prefix": _prefix(tokenizer)}
        else:
            values |= {"model": "gpt2", "merges": [" ".join(pair) for pair in merges], "pre": _pre(tokenizer, path)}
    if model.get("byte_fallback"):
        kinds = [Kind.BYTE if _is_byte(t) else k for t, k in zip(tokens, kinds, strict=True)]
    values |= {"tokens": tokens, "token_type": [int(k) for k in kinds]}
    values |= _special(ids, config, generation, model)
    values["add_bos_token"] = (
        _adds(tokenizer, 0, values.get("bos_token_id"), own) or config.get("add_bos_token") is True
    )
    values["add_eos_token"] = _adds(tokenizer, -1, values.get("eos_token_id"), own)
    result: dict[str, object] = {PREFIX + key: value for key, value in values.items()}
    if text := _template(template, config):
        result["tokenizer.chat_template"] = text
    return result


def _vocabulary(model: Json, kind: str, path: str) -> tuple[Json, list[float]]:
    """Tokens and their ids, and of unigram models each token's score."""
    vocabulary = model.get("vocab")
    if kind != "Unigram" and isinstance(vocabulary, dict):
        return vocabulary, []
    if kind == "Unigram" and isinstance(vocabulary, list):
        pairs = [pair for pair in vocabulary if isinstance(pair, list) and len(pair) == 2 and isinstance(pair[0], str)]
        if len(pairs) == len(vocabulary) and all(isinstance(score, int | float) for _, score in pairs):
            return {token: i for i, (token, _) in enumerate(pairs)}, [float(score) for _, score in pairs]
    raise ModelFileError(f"{path}: its tokenizer's vocab is {vocabulary!r:.60}, which is none of a {kind} model")


def _unigram(tokenizer: Json, scores: list[float], rows: int, path: str) -> dict[str, object]:
    """As SentencePiece normalises: its map, then what is done about blanks."""
    values: dict[str, object] = {"model": "t5", "add_space_prefix": _prefix(tokenizer)}
    squeeze = False
    for step in _steps(tokenizer.get("normalizer"), "normalizers"):
        match step.get("type"):
            case "Precompiled" if isinstance(step.get("precompiled_charsmap"), str):
                values["precompiled_charsmap"] = _decoded(step["precompiled_charsmap"], path)
            case "Replace" if step.get("content") in (" ", "▁") and (step.get("pattern") or {}) == {"Regex": " {2,}"}:
                squeeze = True
            case "Strip" | "Prepend":
                pass
            case "Replace" if step.get("content") == "▁" and (step.get("pattern") or {}) == {"String": " "}:
                pass
            case _:
                raise UnsupportedModel(f"{path}: text is changed in a way that is not known: {step!r:.200}")
    for step in _steps(tokenizer.get("pre_tokenizer"), "pretokenizers"):
        squeeze |= step.get("type") == "WhitespaceSplit"
    if values["add_space_prefix"] and not squeeze:  # a blank is then put before those texts alone that have none
        raise UnsupportedModel(f"{path}: a unigram model that keeps blanks, and puts one before a text, is not known")
    # Ids beyond the scores are of tokens that were added: they are matched whole, and need none.
    return values | {"remove_extra_whitespaces": squeeze, "scores": scores + [0.0] * (rows - len(scores))}


def _decoded(text: str, path: str) -> list[int]:
    try:
        return list(base64.b64decode(text, validate=True))
    except binascii.Error as error:
        raise ModelFileError(f"{path}: precompiled_charsmap in tokenizer.json is no base64: {error}") from error


def _lowercase(tokenizer: Json, path: str) -> bool:
    """Whether BERT's normaliser makes capitals small.

    Raises:
        UnsupportedModel: words are not cut as BERT does.
    """
    normalizer, cut = tokenizer.get("normalizer"), tokenizer.get("pre_tokenizer")
    if not isinstance(normalizer, dict) or normalizer.get("type") != "BertNormalizer":
        raise UnsupportedModel(f"{path}: WordPiece with another normaliser than BERT's: {normalizer!r:.120}")
    if not isinstance(cut, dict) or cut.get("type") != "BertPreTokenizer":
        raise UnsupportedModel(f"{path}: WordPiece with words cut otherwise than BERT's: {cut!r:.120}")
    lower = bool(normalizer.get("lowercase", True))
    if normalizer.get("strip_accents") not in (None, lower) or not normalizer.get("handle_chinese_chars", True):
        raise UnsupportedModel(f"{path}: BERT's normaliser is set as it never was for BERT: {normalizer!r:.120}")
    return lower


def _word(token: str, model: Json) -> str:
    """In GGUF's spelling: a blank before the beginning of a word, nothing before what goes on."""
    prefix = model.get("continuing_subword_prefix") or "##"
    return token[len(prefix) :] if token.startswith(prefix) else f"▁{token}"


def _list(value: Json, key: str) -> list[Any]:
    """A list, or nothing.

    Raises:
        ModelFileError: it is something else.
    """
    found = value.get(key)
    if found is not None and not isinstance(found, list):
        raise ModelFileError(f"{key} in tokenizer.json must be a list, found {found!r:.60}")
    return found or []


def _added(tokenizer: Json, path: str) -> list[tuple[str, int, bool]]:
    """Text, id, and whether it is special, of each token that was added."""
    found = []
    for each in _list(tokenizer, "added_tokens"):
        if not isinstance(each, dict) or not isinstance(each.get("content"), str) or type(each.get("id")) is not int:
            raise ModelFileError(f"{path}: added token {each!r:.80} has no content and id")
        found.append((each["content"], each["id"], bool(each.get("special"))))
    return found


def _tokens(
    vocabulary: Json, added: Iterable[tuple[str, int, bool]], rows: int, path: str
) -> tuple[list[str], list[Kind]]:
    """Tokens by id, and their kinds; ids that nobody has are unused."""
    added = list(added)
    numbered = [*vocabulary.items(), *((text, i) for text, i, _ in added)]
    for text, i in numbered:
        if type(i) is not int or not 0 <= i < _MOST_TOKENS:
            raise ModelFileError(f"{path}: token {text!r:.60} has id {i!r:.40}")
    if numbered and max(i for _, i in numbered) >= rows:
        raise ModelFileError(f"{path}: has ids up to {max(i for _, i in numbered)}, the embedding {rows} rows")
    tokens, kinds = [f"[unused {i}]" for i in range(rows)], [Kind.UNUSED] * rows
    for text, i in vocabulary.items():
        tokens[i], kinds[i] = text, Kind.NORMAL
    for text, i, special in added:
        if kinds[i] == Kind.NORMAL and tokens[i] != text:
            raise ModelFileError(f"{path}: {tokens[i]!r:.60} and {text!r:.60} both have id {i}")
        tokens[i], kinds[i] = text, Kind.CONTROL if special else Kind.USER_DEFINED
    return tokens, kinds


def _merges(value: object, path: str) -> list[tuple[str, str]]:
    """As pairs; older files have each as one string with a blank between."""
    pairs = []
    for each in value if isinstance(value, list) else []:
        pair = each.split(" ") if isinstance(each, str) else each
        if not isinstance(pair, list) or len(pair) != 2 or not all(isinstance(part, str) for part in pair):
            raise ModelFileError(f"{path}: merge {each!r:.80} is no pair")
        pairs.append((pair[0], pair[1]))
    return pairs


def _scores(tokens: Sequence[str], merges: Sequence[tuple[str, str]], ids: Mapping[str, int]) -> list[float]:
    """SentencePiece's order: a piece is as good as the first merge that makes it. What none makes is never joined."""
    scores = [-float(len(merges) + 1)] * len(tokens)
    for rank, (a, b) in reversed(list(enumerate(merges))):
        if a + b in ids:
            scores[ids[a + b]] = -float(rank)
    return scores


def _is_byte(token: str) -> bool:
    return len(token) == 6 and token.startswith("<0x") and token.endswith(">")


def _steps(value: object, key: str) -> list[Json]:
    """A component, or those of a sequence of them."""
    if not isinstance(value, dict):
        return []
    return (
        [each for each in _list(value, key) if isinstance(each, dict)] if value.get("type") == "Sequence" else [value]
    )


def _prefix(tokenizer: Json) -> bool:
    """Whether a blank goes before the text."""
    steps = _steps(tokenizer.get("normalizer"), "normalizers") + _steps(tokenizer.get("pre_tokenizer"), "pretokenizers")
    return any(
        step.get("type") == "Prepend"
        or (step.get("type") == "Metaspace" and step.get("prepend_scheme", "always") != "never")
        for step in steps
    )


def _pre(tokenizer: Json, path: str) -> str:
    """The name of the way words are cut, by its patterns."""

    def refuse(what: object) -> NoReturn:
        raise UnsupportedModel(
            f"{path}: words are cut in a way that is not known, so ids would be wrong: {what!r:.200}"
        )

    patterns: list[str] = []
    for step in _steps(tokenizer.get("pre_tokenizer"), "pretokenizers"):
        match step.get("type"):
            case "Split" if isinstance(step.get("pattern"), dict) and isinstance(step["pattern"].get("Regex"), str):
                patterns.append(step["pattern"]["Regex"])
            case "Digits" if step.get("individual_digits"):
                patterns.append(r"\p{N}")
            case "ByteLevel":
                patterns += [_GPT2] * bool(step.get("use_regex", True))
                if step.get("add_prefix_space"):
                    refuse("a blank goes before the text")
            case _:
                refuse(step)
    nfc = any(step.get("type") == "NFC" for step in _steps(tokenizer.get("normalizer"), "normalizers"))
    whole = bool(tokenizer["model"].get("ignore_merges"))
    for name, known in PRE_TOKENIZERS.items():
        if (list(known.patterns), known.nfc, known.whole_words) == (patterns, nfc, whole):
            return name
    refuse(patterns)


def _special(ids: Mapping[str, int], config: Json, generation: Json, model: Json) -> dict[str, object]:
    """Ids of the tokens with a role: by name in tokenizer_config.json, by id in generation_config.json."""
    found: dict[str, object] = {}
    if type(model.get("unk_id")) is int and 0 <= model["unk_id"] < len(ids):
        found["unknown_token_id"] = model["unk_id"]
    for role, other in (("bos", "cls"), ("eos", "sep"), ("unk", ""), ("pad", "")):
        text = config.get(f"{role}_token") or (
            model.get("unk_token") if role == "unk" else config.get(f"{other}_token")
        )
        text = text.get("content") if isinstance(text, dict) else text
        if isinstance(text, str) and text in ids:
            found[{"unk": "unknown", "pad": "padding"}.get(role, role) + "_token_id"] = ids[text]
    bos, ends = generation.get("bos_token_id"), generation.get("eos_token_id")
    if "bos_token_id" not in found and type(bos) is int and 0 <= bos < len(ids):
        found["bos_token_id"] = bos
    ends = [each for each in (ends if isinstance(ends, list) else [ends]) if type(each) is int and 0 <= each < len(ids)]
    for name, end in zip(("eos", "eot", "eom"), ends, strict=False):
        found[f"{name}_token_id"] = end
    return found


def _adds(tokenizer: Json, place: int, token: object, tokens: Sequence[str]) -> bool:
    """Whether the post-processor puts a token before each prompt (`place` 0) or after it (-1)."""
    if not isinstance(token, int):
        return False
    for step in _steps(tokenizer.get("post_processor"), "processors"):
        around = _list(step, "single")
        edge = around[place] if around else None
        special = edge.get("SpecialToken") if isinstance(edge, dict) else None
        if isinstance(special, dict) and special.get("id") == tokens[token]:
            return True
    return False


def _template(own: str | None, config: Json) -> str | None:
    found = own or config.get("chat_template")
    if isinstance(found, list):
        named = {each.get("name"): each.get("template") for each in found if isinstance(each, dict)}
        found = named.get("default")
    return found if isinstance(found, str) else None
