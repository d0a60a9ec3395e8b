"""A Hugging Face tokenizer (tokenizer.json and its companions) in GGUF's words: `tokenizer.ggml.*` and the template.

Knows the layout of those files. Byte-level BPE is recognised by the patterns that cut words, BPE that came from
SentencePiece by its byte fallback; anything else is refused: token ids would be wrong.
"""

from __future__ import annotations

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
    if (
        not isinstance(model, dict)
        or not isinstance(model.get("vocab"), dict)
        or model.get("type") not in (None, "BPE")
    ):
        kind = model.get("type") if isinstance(model, dict) else model
        raise UnsupportedModel(f"{path}: its tokenizer is of type {kind!r:.40}; BPE is what can be read")
    merges = _merges(model.get("merges"), path)
    tokens, kinds = _tokens(model["vocab"], _added(tokenizer, path), rows, path)
    ids = {token: i for i, token in enumerate(tokens)}
    values: dict[str, object] = {"tokens": tokens}
    if model.get("byte_fallback"):
        values |= {"model": "llama", "scores": _scores(tokens, merges, ids), "add_space_prefix": _prefix(tokenizer)}
        kinds = [Kind.BYTE if _is_byte(t) else k for t, k in zip(tokens, kinds, strict=True)]
    else:
        values |= {"model": "gpt2", "merges": [" ".join(pair) for pair in merges], "pre": _pre(tokenizer, path)}
    values["token_type"] = [int(kind) for kind in kinds]
    values |= _special(ids, config, generation, model)
    values["add_bos_token"] = _adds_bos(tokenizer, config, values.get("bos_token_id"), tokens)
    result: dict[str, object] = {PREFIX + key: value for key, value in values.items()}
    if text := _template(template, config):
        result["tokenizer.chat_template"] = text
    return result


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
    for role in ("bos", "eos", "unk", "pad"):
        text = config.get(f"{role}_token") or (model.get("unk_token") if role == "unk" else None)
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


def _adds_bos(tokenizer: Json, config: Json, bos: object, tokens: Sequence[str]) -> bool:
    """Whether prompts begin with BOS: the post-processor says so, else tokenizer_config.json."""
    if not isinstance(bos, int):
        return False
    for step in _steps(tokenizer.get("post_processor"), "processors"):
        first = next(iter(_list(step, "single")), None)
        special = first.get("SpecialToken") if isinstance(first, dict) else None
        if isinstance(special, dict) and special.get("id") == tokens[bos]:
            return True
    return config.get("add_bos_token") is True


def _template(own: str | None, config: Json) -> str | None:
    found = own or config.get("chat_template")
    if isinstance(found, list):
        named = {each.get("name"): each.get("template") for each in found if isinstance(each, dict)}
        found = named.get("default")
    return found if isinstance(found, str) else None
