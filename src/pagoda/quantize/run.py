"""Quantising a model: unit by unit from the first tensor to the last, whatever the method."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pagoda
from pagoda import catalog
from pagoda.backends.ops import Bytes
from pagoda.catalog import AnyModel, Progress
from pagoda.errors import InvalidConfig, PagodaError
from pagoda.quantize.calibration import CALIBRATED, Calibrated, calibration_text
from pagoda.quantize.layout import FORMATS, Layout, Output, Unit, lay_out, quantised_formats
from pagoda.quantize.rows import Error, quantised_rows
from pagoda.quantize.unfinished import Unfinished, at, directory_of

METHODS = ("plain", *CALIBRATED)


@dataclass(frozen=True, slots=True)
class Options:
    """What is wanted.

    Raises:
        InvalidConfig: there is no such format or method, or they do not go together.
    """

    format: str = "q4_0"
    """Of layers' matrices: one of `FORMATS`."""
    outer: str | None = None
    """Of the embedding and the vocabulary projection; None is q8_0, or `format` if that is finer."""
    method: str = "plain"
    """`plain`: each number to the nearest. `awq`, `gptq`: so that outputs on a text change least."""
    calibrate: str | os.PathLike[str] | None = None
    """A text file; None is a text that comes with Pagoda."""
    tokens: int = 8192
    """Most tokens of the text that are used."""
    threads: int | None = None
    """Of the native backend, when a text is run; None is the cores this process may use."""

    def __post_init__(self) -> None:
        """Check what can be checked without the model."""
        for name in (self.format, *([self.outer] if self.outer is not None else [])):
            if name not in FORMATS:
                raise InvalidConfig(f"format must be one of {', '.join(FORMATS)}, got {name!r}")
        if self.method not in METHODS:
            raise InvalidConfig(f"method must be one of {', '.join(METHODS)}, got {self.method!r}")
        if self.method == "plain" and self.calibrate is not None:
            raise InvalidConfig("a calibration text changes nothing with method plain: choose awq or gptq, or leave it")
        if self.method != "plain" and self.format in ("f32", "f16", "bf16"):
            raise InvalidConfig(f"method {self.method} is for formats of few bits, and {self.format} has none of them")
        if self.tokens < 1:
            raise InvalidConfig(f"tokens must be at least 1, got {self.tokens}")

    @property
    def finer(self) -> str:
        """`outer`, resolved."""
        return self.outer or (self.format if self.format in ("f32", "f16", "bf16") else "q8_0")


@dataclass(frozen=True, slots=True)
class TensorReport:
    """What became of one tensor."""

    name: str
    was: str
    became: str
    method: str
    numbers: int
    bytes: int
    error: float
    """Root of the sum of squared differences over that of squares. With awq, of what is multiplied by the input as it
    was before scaling."""


@dataclass(frozen=True, slots=True)
class Report:
    """What became of a model."""

    path: str
    bytes_before: int
    """Of tensors, as of `bytes_after`."""
    bytes_after: int
    numbers: int
    tensors: list[TensorReport]
    notes: list[str] = field(default_factory=list)

    @property
    def bits_per_weight(self) -> float:
        """Of all tensors together."""
        return 8 * self.bytes_after / self.numbers

    @property
    def as_dict(self) -> dict[str, Any]:
        """In JSON's types."""
        return asdict(self) | {"bits_per_weight": self.bits_per_weight}


def quantize(
    model: str | os.PathLike[str],
    out: str | os.PathLike[str],
    options: Options | None = None,
    *,
    force: bool = False,
    progress: Progress | None = None,
    fetching: Progress | None = None,
    tell: Callable[[str], None] = lambda _: None,
) -> Report:
    """Write a model as a GGUF file with smaller weights.

    An interrupted run leaves OUT.unfinished, and the same call goes on from there, to the same bytes.

    Args:
        model: anything `catalog.open_model` opens.
        out: the file; it appears whole or not at all.
        options: what is wanted.
        force: whether a file that is there may be replaced.
        progress: is called with bytes done, and of how many.
        fetching: the same, of a built-in model that must be fetched first.
        tell: is called with each note as it is found.

    Raises:
        InvalidConfig: the file is there already, cannot be written, or will not fit the disk.
        UnknownModel, DownloadError, UnsupportedModel, ModelFileError: as `catalog.open_model`.
        ModelFileError: there are NaN or infinite numbers.
    """
    wanted, path = options or Options(), Path(out)
    if path.is_dir() or (path.exists() and not force):
        raise InvalidConfig(
            f"{path} is there already: name another file" + ", or replace it with --force" * path.is_file()
        )
    try:
        with catalog.open_model(model, progress=fetching) as source:
            same = isinstance(source, catalog.ModelFile) and path.exists() and path.samefile(source.path)
            if same:
                raise InvalidConfig(f"{path} is the model itself: name another file")
            return _Job(source, path, wanted, progress or (lambda _done, _total: None), tell).run()
    except OSError as error:
        where = error.filename or path
        raise InvalidConfig(f"{where}: cannot be written: {error.strerror}; the same command will go on") from error


class _Job:
    """One run."""

    def __init__(
        self, source: AnyModel, out: Path, options: Options, progress: Progress, tell: Callable[[str], None]
    ) -> None:
        self._source, self._out, self._options = source, out, options
        self._progress, self._tell = progress, tell
        self._layout = lay_out(source, options.format, options.finer)
        self._text = calibration_text(options.calibrate) if options.method in CALIBRATED else ""
        self._notes: list[str] = []

    def run(self) -> Report:
        self._first_notes()
        with at(self._out, self._name()) as unfinished:
            if unfinished.discarded:
                self._note(f"{directory_of(self._out)} was of another job and has been thrown away")
            elif unfinished.done:
                self._tell(f"going on: {len(unfinished.done)} of {len(self._layout.units) + 1} parts are done")
            unfinished.check_room(self._layout.size)
            if not unfinished.done:
                unfinished.write([self._layout.head], {"label": "head"})
            self._units(unfinished)
            report = self._report(unfinished)
            unfinished.finish()
        return report

    def _name(self) -> str:
        """What the bytes hang on."""
        options = asdict(self._options) | {"calibrate": self._text, "threads": None}
        parts = [pagoda.__version__, self._source.digest(), json.dumps(options, sort_keys=True)]
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()

    def _first_notes(self) -> None:
        if already := quantised_formats(self._source):
            self._note(
                f"{self._source.name} is quantised already ({', '.join(already)}): what that has lost stays lost, and "
                "this is added; start from dense weights if there are any"
            )
        short: dict[str, list[str]] = {}
        for output in self._layout.outputs:
            if output.fallback:
                short.setdefault(output.format, []).append(output.name)
        for form, names in short.items():
            some = ", ".join(names[:2]) + (f" and {len(names) - 2} more" if len(names) > 2 else "")
            asked = self._options.format
            self._note(f"{form} instead of {asked}, whose blocks do not divide the rows: {some}")

    def _note(self, text: str) -> None:
        self._notes.append(text)
        self._tell(text)

    def _units(self, unfinished: Unfinished) -> None:
        done, total = len(unfinished.done) - 1, self._layout.size
        self._progress(unfinished.written, total)
        calibrated = Calibrated(self._source, self._layout, self._options.method, self._options.threads, self._text,
                                self._options.tokens) if self._text else None  # fmt: skip
        if calibrated and done > 0:
            calibrated.resume(unfinished.state())
        for unit in self._layout.units[done:]:
            made = calibrated.made(unit) if calibrated else {}
            notes = calibrated.notes if calibrated else []
            for note in notes:
                self._tell(note)
            record: dict[str, Any] = {"label": unit.label, "notes": list(notes), "tensors": []}
            state = calibrated.state() if calibrated else None
            unfinished.write(self._pieces(unit, made, record["tensors"], unfinished), record, state)
            self._progress(unfinished.written, total)

    def _pieces(
        self,
        unit: Unit,
        made: dict[str, tuple[Bytes, float, str]],
        reports: list[dict[str, Any]],
        unfinished: Unfinished,
    ) -> Iterator[Bytes | bytes]:
        """A unit's bytes; `reports` grow with them."""
        before = unfinished.written
        for output in unit.outputs:
            gap = len(self._layout.head) + output.offset - before
            yield bytes(gap)
            error, method, written = Error(), "plain", 0
            if output.name in made:
                raw, relative, method = made[output.name]
                yield raw
                written = raw.nbytes
            else:
                for piece in quantised_rows(self._source, output, error):
                    yield piece
                    written += piece.nbytes
                    self._progress(before + gap + written, self._layout.size)
                relative = error.relative
            if written != output.size:
                raise PagodaError(f"tensor {output.name!r} became {written} bytes where {output.size} were reckoned")
            before += gap + written
            self._progress(before, self._layout.size)
            reports.append(asdict(self._tensor_report(output, method, relative)))

    def _tensor_report(self, output: Output, method: str, error: float) -> TensorReport:
        was = self._source.tensors[output.sources[0]].format.name
        numbers = output.rows * output.shape[-1]
        return TensorReport(output.name, was, output.format, method, numbers, output.size, error)

    def _report(self, unfinished: Unfinished) -> Report:
        tensors = [TensorReport(**each) for record in unfinished.done for each in record.get("tensors", ())]
        notes = self._notes + [note for record in unfinished.done for note in record.get("notes", ())]
        sources = {name for output in self._layout.outputs for name in output.sources}
        before = sum(self._source.tensors[name].size for name in sources)
        return Report(
            str(self._out), before, sum(t.bytes for t in tensors), sum(t.numbers for t in tensors), tensors,
            list(dict.fromkeys(notes)),
        )  # fmt: skip


__all__ = ["METHODS", "Layout", "Options", "Report", "TensorReport", "quantize"]
