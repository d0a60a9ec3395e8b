"""Where models come from: a built-in name, a path, a Hugging Face id.

    resolve(name) -> path of a file or directory that is here and, for a built-in, verified
    open_model(name) -> ModelFile or HuggingDirectory: the same doors

Knows files and their headers. Does not know what a model computes.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from pagoda.catalog.builtin import BUILTINS, Builtin
from pagoda.catalog.gguf import TensorInfo
from pagoda.catalog.hf_directory import HuggingDirectory
from pagoda.catalog.model_file import ModelFile
from pagoda.catalog.pull import Progress, cached_path, pull
from pagoda.catalog.quantized import Quantized
from pagoda.errors import UnknownModel, UnsupportedModel

__all__ = [
    "BUILTINS",
    "AnyModel",
    "Builtin",
    "HuggingDirectory",
    "ModelFile",
    "Progress",
    "Quantized",
    "TensorInfo",
    "cached_path",
    "open_model",
    "resolve",
]

AnyModel = ModelFile | HuggingDirectory | Quantized
"""Opened: they have the same doors."""


def resolve(name: str | os.PathLike[str], *, progress: Progress | None = None, offline: bool = False) -> Path:
    """The path of a model's file or directory; a built-in that is not in the cache is fetched, unless `offline`.

    Raises:
        UnknownModel: no built-in and no file has this name.
        UnsupportedModel: a Hugging Face id: these cannot be loaded yet.
        DownloadError: a built-in that is not here and could not be fetched.
    """
    text = os.fspath(name)
    if text in BUILTINS:
        return pull(BUILTINS[text], progress, offline=offline)
    path = Path(os.path.expanduser(text))
    if text and os.path.exists(path):
        return path
    known = ", ".join(BUILTINS)
    if not text.endswith(".gguf") and re.fullmatch(r"[\w.-]+/[\w.-]+", text) and not text.startswith((".", "~")):
        raise UnsupportedModel(
            f"{text} looks like a Hugging Face id; these cannot be loaded yet: download the model and give the path of "
            f"its .gguf file or directory, or take a built-in model ({known})"
        )
    raise UnknownModel(
        f"no model or file is named {text!r}; built-in models are {known}, others are paths to .gguf files or "
        "Hugging Face directories"
    )


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
