"""Models from a Hugging Face hub, by id: fetched once into the cache that its own tools use, then used from there.

`huggingface_hub` does the talking: HF_ENDPOINT names a mirror, HF_TOKEN opens private and gated models, HF_HOME moves
the cache. What is here and whole is used without asking the hub, so a start needs no network and finds the same
weights as the last; `refresh` (which is `pagoda pull`) asks whether the revision has moved. Beside the cache Pagoda
keeps a note for each id: the commit, and the files that were chosen. The note is written last: with it, all is here.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote

from pagoda.catalog.directory import cache_directory, write_whole
from pagoda.catalog.hub_files import Choice, HubId, choose
from pagoda.errors import DownloadError, PagodaError, UnknownModel

Report = Callable[[int, int], None]
"""How many of how many bytes are here."""
_log = logging.getLogger(__name__)


def fetch(wanted: HubId, report: Report | None = None, *, offline: bool = False, refresh: bool = False) -> Path:
    """The model's directory or GGUF file, fetched if it is not here.

    Args:
        wanted: which.
        report: is told of progress.
        offline: ask nobody.
        refresh: ask whether the revision is another commit by now.

    Raises:
        UnknownModel: the hub has no such repository or revision, or does not show it.
        UnsupportedModel: the repository holds no model that can be read.
        DownloadError: it is not here, and could not be fetched.
    """
    here = _noted(wanted) or _whole_in_cache(wanted)
    if here is not None and (offline or not refresh):
        return here
    if offline:
        raise DownloadError(f"{wanted} is not in the cache, and fetching is switched off; {_way_out(wanted)}")
    try:
        with _explained(wanted):
            return _fetch(wanted, report or _tell_nobody)
    except DownloadError as error:
        if here is None:
            raise
        _log.warning("%s; what is here is used", error)
        return here


def _tell_nobody(done: int, total: int) -> None:
    """For callers that do not care how far it is."""


# --- what is here ----------------------------------------------------------------------------------------------------


def _note(wanted: HubId) -> Path:
    same = replace(wanted, want=wanted.want.lower())
    return cache_directory() / "hub" / (quote(str(same), safe="") + ".json")


def _noted(wanted: HubId) -> Path | None:
    """What the note says is here, if it still is."""
    try:
        note = json.loads(_note(wanted).read_bytes())
        commit, files, opened = str(note["commit"]), [str(file) for file in note["files"]], str(note["opened"])
    except (OSError, ValueError, TypeError, KeyError):
        return None
    place = _repository(wanted) / "snapshots" / commit
    if not files or not all((place / file).is_file() for file in files):
        return None
    return place / opened


def _whole_in_cache(wanted: HubId) -> Path | None:
    """What another tool fetched, if nothing of it is missing."""
    place = _repository(wanted)
    try:
        commit = (place / "refs" / wanted.revision).read_text().strip()
    except (OSError, ValueError):
        commit = wanted.revision
    snapshot = place / "snapshots" / commit
    if not commit or not snapshot.is_dir():
        return None
    names = [path.relative_to(snapshot).as_posix() for path in snapshot.rglob("*") if path.is_file()]
    try:
        chosen = choose(wanted, names)
    except PagodaError:
        return None
    return snapshot / chosen.opened if chosen.opened or _complete(snapshot, names) else None


def _complete(snapshot: Path, names: list[str]) -> bool:
    """Whether a directory has what every model has, and all shards that its index lists."""
    if not {"config.json", "tokenizer.json"}.issubset(names):
        return False
    if "model.safetensors.index.json" not in names:
        return True
    try:
        places = json.loads((snapshot / "model.safetensors.index.json").read_bytes())["weight_map"]
        return set(places.values()).issubset(names)
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return False


def _repository(wanted: HubId) -> Path:
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE) / ("models--" + wanted.repo.replace("/", "--"))


def _endpoint() -> str:
    """The hub's address."""
    from huggingface_hub import constants

    return os.environ.get("HF_ENDPOINT", "").rstrip("/") or constants.ENDPOINT


# --- fetching --------------------------------------------------------------------------------------------------------


def _fetch(wanted: HubId, report: Report) -> Path:
    from huggingface_hub import HfApi, hf_hub_download

    host = _endpoint()
    api = HfApi(endpoint=host)
    commit = api.model_info(wanted.repo, revision=wanted.revision).sha
    if not commit:
        raise DownloadError(f"{host} does not say at which commit {wanted} is")
    tree = api.list_repo_tree(wanted.repo, revision=commit, recursive=True)
    sizes = {each.path: int(each.size or 0) for each in tree if hasattr(each, "size")}
    chosen = choose(wanted, list(sizes))
    _check_room(wanted, commit, {file: sizes[file] for file in chosen.files})
    done, total = 0, sum(sizes[file] for file in chosen.files)
    place = Path()
    for file in chosen.files:

        def show(here: int, before: int = done) -> None:
            report(before + here, total)

        bar: Any = partial(_Bar, show=show)
        path = Path(hf_hub_download(wanted.repo, file, revision=commit, endpoint=host, tqdm_class=bar))
        place = path.parents[file.count("/")]
        if path.stat().st_size != sizes[file]:
            raise DownloadError(f"{file} has {path.stat().st_size} bytes, and the hub lists {sizes[file]}")
        done += sizes[file]
        report(done, total)
    _remember(wanted, commit, chosen)
    return place / chosen.opened


def _check_room(wanted: HubId, commit: str, sizes: dict[str, int]) -> None:
    place = _repository(wanted)
    place.mkdir(parents=True, exist_ok=True)
    needed = sum(size for file, size in sizes.items() if not (place / "snapshots" / commit / file).exists())
    free = shutil.disk_usage(place).free
    if free < needed:
        raise DownloadError(f"{place.parent} has {free // 10**6} MB free, and {needed // 10**6} MB are needed")


def _remember(wanted: HubId, commit: str, chosen: Choice) -> None:
    note = {"commit": commit, "files": chosen.files, "opened": chosen.opened}
    write_whole(_note(wanted), json.dumps(note).encode())


class _Bar:
    """What the hub's client takes for the progress bar of one file: draws nothing, tells how much is here."""

    def __init__(self, *_: object, show: Callable[[int], None], initial: int = 0, **__: object) -> None:
        self._show, self._here = show, initial

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def update(self, n: float | None = 1) -> None:
        """Another `n` bytes of the file."""
        self._here += int(n or 0)
        self._show(self._here)

    def update_transfer(self, n: float | None = 1) -> None:
        """Bytes as they cross the network, perhaps packed: not told."""

    def set_postfix_str(self, text: str, refresh: bool = True) -> None:
        """A rate, for a bar that is drawn."""

    set_transfer_postfix_str = set_postfix_str

    def close(self) -> None:
        """The file is here."""


@contextmanager
def _explained(wanted: HubId) -> Iterator[None]:
    """The client's many errors, in ours."""
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError, RevisionNotFoundError

    host = _endpoint()
    try:
        yield
    except PagodaError:
        raise
    except GatedRepoError as error:
        raise DownloadError(
            f"{wanted.repo} asks that its terms be accepted: do so at {host}/{wanted.repo}, then set HF_TOKEN to a "
            "token of that account"
        ) from error
    except RevisionNotFoundError as error:
        raise UnknownModel(f"{host} has {wanted.repo}, but no revision {wanted.revision!r} of it") from error
    except RepositoryNotFoundError as error:
        raise UnknownModel(
            f"no file is named {wanted}, and {host} has no model {wanted.repo!r}, or does not show it without a token: "
            "set HF_TOKEN if it is private"
        ) from error
    except Exception as error:  # its network library's errors differ from one version to the next
        reason = " ".join(str(error).split())[:300] or type(error).__name__
        raise DownloadError(f"{wanted} could not be fetched from {host}: {reason}; {_way_out(wanted)}") from error


def _way_out(wanted: HubId) -> str:
    return (
        f"run `pagoda pull {wanted}` where the hub can be reached (HF_ENDPOINT names a mirror), "
        "or give the path of a .gguf file or of a Hugging Face directory"
    )
