"""Hugging Face ids, and which files of a repository make a model. Names only; knows nothing of how they are fetched."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pagoda.errors import UnsupportedModel

_ID = re.compile(
    r"(?P<repo>[\w][\w.-]*/[\w][\w.-]*)(?:@(?P<revision>[\w][\w./-]*))?(?::(?P<want>[\w][\w./-]*))?", re.ASCII
)
_PART = re.compile(r"(?P<stem>.+)-(?P<part>\d{5})-of-(?P<parts>\d{5})\.gguf", re.IGNORECASE)
_WEIGHTS = re.compile(r"model(-\d{5}-of-\d{5})?\.safetensors")
_INDEX = "model.safetensors.index.json"
_BESIDE = (
    "config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja",
    "quantize_config.json", _INDEX,
)  # fmt: skip
_NO_MODEL = re.compile(r"(^|[-_./])(mmproj|imatrix)([-_.]|$)", re.IGNORECASE)
"""GGUF files that are an image tower, or statistics."""
FAVOURITES = ("q4_k_m", "q4_1", "q4_0", "q4_k_s", "q8_0")
"""Of several GGUF files the first of these, if none is asked for."""


@dataclass(frozen=True, slots=True)
class HubId:
    """`OWNER/NAME`, with `@REVISION` for another than main and `:WANT` for one of several GGUF files."""

    repo: str
    revision: str = "main"
    want: str = ""
    """A file's path, or the end of its name before `.gguf`, such as Q4_K_M."""

    @classmethod
    def parse(cls, text: str) -> HubId | None:
        """None if it is no id."""
        found = _ID.fullmatch(text)
        if found is None or found["repo"].endswith(".gguf") or ".." in text:
            return None
        return cls(found["repo"], found["revision"] or "main", found["want"] or "")

    def __str__(self) -> str:
        """As it is typed."""
        revision = f"@{self.revision}" if self.revision != "main" else ""
        return self.repo + revision + (f":{self.want}" if self.want else "")


@dataclass(frozen=True, slots=True)
class Choice:
    """The files that make a model, and which of them is opened: the empty name is the directory itself."""

    files: tuple[str, ...]
    opened: str = ""


def choose(wanted: HubId, names: Sequence[str]) -> Choice:
    """The files of a repository that make the model asked for.

    Safetensors are taken if there are any and no GGUF file is asked for.

    Raises:
        UnsupportedModel: none, or one that cannot be told from others; lists what there is.
    """
    weights = [name for name in names if _WEIGHTS.fullmatch(name)]
    if weights and not wanted.want:
        if _INDEX in names:
            weights = [name for name in weights if name != "model.safetensors"]
        return Choice((*(name for name in _BESIDE if name in names), *sorted(weights)))
    models = _gguf_models(names)
    if not models:
        raise UnsupportedModel(f"{wanted}: {_nothing(wanted, names, bool(weights))}")
    first = _pick(wanted, sorted(models))
    return Choice(models[first], first)


def _nothing(wanted: HubId, names: Iterable[str], weights: bool) -> str:
    if weights:
        return f"the repository has no GGUF file, so `:{wanted.want}` names nothing: leave it out"
    other = sorted(name for name in names if name.endswith((".bin", ".pth", ".pt", ".onnx", ".safetensors")))
    found = f"; it has {', '.join(other[:3])}, which cannot be read" if other else ""
    return f"the repository has neither model.safetensors nor a .gguf file{found}"


def _gguf_models(names: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """The first file of each model to all of its files; those with parts missing are none."""
    parts: dict[str, list[str]] = {}
    for name in sorted(names):
        outside = name.startswith("/") or ".." in name.split("/")
        if name.lower().endswith(".gguf") and not _NO_MODEL.search(name) and not outside:
            found = _PART.fullmatch(name)
            parts.setdefault(f"{found['stem']} {found['parts']}" if found else name, []).append(name)
    whole = {}
    for files in parts.values():
        found = _PART.fullmatch(files[0])
        if found is None or len(files) == int(found["parts"]):
            whole[files[0]] = tuple(files)
    return whole


def _tag(name: str) -> str:
    """A GGUF file's name without part number and ending, in small letters."""
    found = _PART.fullmatch(name)
    return (found["stem"] if found else name[: -len(".gguf")]).lower()


def _pick(wanted: HubId, models: Sequence[str]) -> str:
    """The one that is asked for, else the only one, else the first favourite."""
    if wanted.want:
        ending = wanted.want.lower().removesuffix(".gguf")
        exact = [name for name in models if wanted.want in (name, name.rpartition("/")[2])]
        found = exact or [name for name in models if re.search(rf"(^|[-_./]){re.escape(ending)}$", _tag(name))]
        if len(found) == 1:
            return found[0]
        what = f"names {len(found)} of its GGUF files" if found else "names none of its GGUF files"
        raise UnsupportedModel(f"{wanted}: `:{wanted.want}` {what}; there are {_listed(found or models)}")
    if len(models) == 1:
        return models[0]
    for favourite in FAVOURITES:
        found = [name for name in models if _tag(name).endswith(favourite)]
        if len(found) == 1:
            return found[0]
    raise UnsupportedModel(
        f"{wanted}: the repository has {len(models)} GGUF files: name one, as in {wanted.repo}:Q4_K_M; "
        f"there are {_listed(models)}"
    )


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - 12} more" if len(names) > 12 else ""
    return ", ".join(names[:12]) + more
