"""Where models come from: a built-in name, a path, a Hugging Face id.

    resolve(name) -> path of a file that is here and, for a built-in, verified
    open_model(name) -> ModelFile

Knows files and their headers. Does not know what a model computes.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from pagoda.catalog.builtin import BUILTINS, Builtin
from pagoda.catalog.gguf import TensorInfo
from pagoda.catalog.model_file import ModelFile
from pagoda.catalog.pull import Progress, cached_path, pull
from pagoda.errors import UnknownModel, UnsupportedModel

__all__ = [
    "BUILTINS",
    "Builtin",
    "ModelFile",
    "Progress",
    "TensorInfo",
    "cached_path",
    "open_model",
    "resolve",
]


def resolve(name: str | os.PathLike[str], *, progress: Progress | None = None, offline: bool = False) -> Path:
    """The path of a model's file; a built-in that is not in the cache is fetched, unless `offline`.

    Raises:
        UnknownModel: no built-in and no file has this name.
        UnsupportedModel: a Hugging Face id or directory: these cannot be loaded yet.
        DownloadError: a built-in that is not here and could not be fetched.
    """
    text = os.fspath(name)
    if text in BUILTINS:
        return pull(BUILTINS[text], progress, offline=offline)
    path = Path(os.path.expanduser(text))
    if text and os.path.isdir(path):
        raise UnsupportedModel(
            f"{text} is a directory; Hugging Face directories cannot be loaded yet: give the path of a .gguf file"
        )
    if text and os.path.exists(path):
        return path
    known = ", ".join(BUILTINS)
    if not text.endswith(".gguf") and re.fullmatch(r"[\w.-]+/[\w.-]+", text) and not text.startswith((".", "~")):
        raise UnsupportedModel(
            f"{text} looks like a Hugging Face id; these cannot be loaded yet: download the model's .gguf file and "
            f"give its path, or take a built-in model ({known})"
        )
    raise UnknownModel(
        f"no model or file is named {text!r}; built-in models are {known}, others are paths to .gguf files"
    )


def open_model(name: str | os.PathLike[str], *, progress: Progress | None = None, offline: bool = False) -> ModelFile:
    """`resolve`, then open.

    Raises:
        UnknownModel, UnsupportedModel, DownloadError: as `resolve`.
        ModelFileError: the file is damaged.
    """
    return ModelFile(resolve(name, progress=progress, offline=offline))
