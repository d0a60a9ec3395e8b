"""Where models come from: a built-in name, a path, a Hugging Face id.

    resolve(name) -> path of a file or directory that is here and, for a built-in, verified
    open_model(name) -> ModelFile or HuggingDirectory: the same doors

Knows files and their headers. Does not know what a model computes.
"""

from __future__ import annotations

import os
from pathlib import Path

from pagoda.catalog.builtin import BUILTINS, Builtin
from pagoda.catalog.gguf import TensorInfo
from pagoda.catalog.hf_directory import HuggingDirectory
from pagoda.catalog.hub import fetch
from pagoda.catalog.hub_files import HubId
from pagoda.catalog.model_file import ModelFile
from pagoda.catalog.pull import Progress, cached_path, pull
from pagoda.catalog.quantized import Quantized
from pagoda.errors import UnknownModel

__all__ = [
    "BUILTINS",
    "AnyModel",
    "Builtin",
    "HuggingDirectory",
    "ModelFile",
    "Progress",
    "Quantized",
    "TensorInfo",
    "api_name",
    "cached_path",
    "open_model",
    "resolve",
]

AnyModel = ModelFile | HuggingDirectory | Quantized
"""Opened: they have the same doors."""


def resolve(
    name: str | os.PathLike[str], *, progress: Progress | None = None, offline: bool = False, refresh: bool = False
) -> Path:
    """The path of a model's file or directory; what is not here is fetched, unless `offline`.

    A built-in name comes first, then a path, then a Hugging Face id (`HubId`). `refresh` asks the hub whether an id
    stands for other files by now.

    Raises:
        UnknownModel: no built-in, no file and no hub has this name.
        UnsupportedModel: a Hugging Face id of no model that can be read.
        DownloadError: it is not here and could not be fetched.
    """
    text = os.fspath(name)
    if text in BUILTINS:
        return pull(BUILTINS[text], progress, offline=offline)
    path = Path(os.path.expanduser(text))
    if text and os.path.exists(path):
        return path
    if wanted := HubId.parse(text):
        return fetch(wanted, progress, offline=offline, refresh=refresh)
    known = ", ".join(BUILTINS)
    raise UnknownModel(
        f"no model or file is named {text!r}; built-in models are {known}, others are paths to .gguf files or "
        "Hugging Face directories, or Hugging Face ids such as OWNER/NAME"
    )


def api_name(name: str) -> str:
    """What a model is called in the API: a built-in's name, a file's without `.gguf`, an id without what follows it."""
    if name in BUILTINS:
        return name
    if not os.path.exists(os.path.expanduser(name)) and (wanted := HubId.parse(name)):
        return wanted.repo
    return Path(name).name.removesuffix(".gguf")


def open_model(
    name: str | os.PathLike[str],
    *,
    progress: Progress | None = None,
    offline: bool = False,
    quantize: str | None = None,
) -> AnyModel:
    """`resolve`, then open; with `quantize`, dense matrices become that format as they are read.

    Raises:
        UnknownModel, UnsupportedModel, DownloadError: as `resolve`.
        ModelFileError: the file is damaged.
    """
    path = resolve(name, progress=progress, offline=offline)
    opened = HuggingDirectory(path) if path.is_dir() else ModelFile(path)
    return opened if quantize is None else Quantized(opened, quantize)
