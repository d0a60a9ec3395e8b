"""Quantising a tensor a few rows at a time, as `quant` does, with its error: memory does not grow with the tensor."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from pagoda import quant
from pagoda.backends.ops import Bytes, Floats, StoredTensor
from pagoda.catalog import AnyModel
from pagoda.errors import ModelFileError
from pagoda.quantize.layout import Output, turn_order

PIECE = 2**18
"""Numbers that are dequantised and quantised at once: quantisers take some ten arrays of as many."""


@dataclass(slots=True)
class Error:
    """How far a tensor is from what it was."""

    difference: float = 0.0
    """Sum of squares."""
    whole: float = 0.0
    """Sum of squares of what it was."""

    def add(self, was: Floats, became: Floats) -> None:
        """Count some numbers in."""
        apart = (became - was).ravel().astype(np.float64)
        wide = was.ravel().astype(np.float64)
        self.difference += float(apart @ apart)
        self.whole += float(wide @ wide)

    @property
    def relative(self) -> float:
        """Root of the quotient; 0 for zeros."""
        return float((self.difference / self.whole) ** 0.5) if self.whole else 0.0


def quantised_rows(source: AnyModel, output: Output, error: Error) -> Iterator[Bytes]:
    """A tensor's bytes in the new file, piece by piece; `error` grows with them.

    Raises:
        ModelFileError: it cannot be read, or has numbers that are none.
    """
    for name in output.sources:
        for batch in source.batches([name]):
            for tensor in batch:
                for piece in pieces(tensor, output.turned[0] if output.turned else 1):
                    yield turned(_quantised(source, piece, output, error), output)


def pieces(tensor: StoredTensor, step: int = 1) -> Iterator[StoredTensor]:
    """Some whole rows each, a multiple of `step`; a vector is a column."""
    *outer, width = tensor.shape if len(tensor.shape) > 1 else (*tensor.shape, 1)
    rows, size = int(np.prod(outer, dtype=np.int64)), width // tensor.format.block * tensor.format.block_bytes
    for here in row_slices(rows, width, step):
        stored, begin, end = tensor.stored, here.start * size, here.stop * size
        part = stored[begin:end] if isinstance(stored, np.ndarray) else stored.part(begin, end - begin)
        yield StoredTensor(tensor.name, (here.stop - here.start, width), tensor.format, part, tensor.order)


def row_slices(rows: int, width: int, step: int = 1) -> Iterator[slice]:
    """Rows that are worked on together, a multiple of `step`."""
    many = max(1, PIECE // width // step) * step
    for begin in range(0, rows, many):
        yield slice(begin, min(begin + many, rows))


def in_order(piece: StoredTensor) -> Floats:
    """Some rows' numbers, their columns in the inputs' order: a file has no place for another."""
    floats = piece.floats()
    if piece.order is None:
        return floats
    natural = np.empty_like(floats)
    natural[:, piece.order] = floats
    return natural


def numbers(model: str, tensor: StoredTensor) -> Floats:
    """A tensor's numbers, as an array of its own.

    Raises:
        ModelFileError: there are numbers that are none.
    """
    found = np.empty(tensor.shape, np.float32)
    rows, at = found.reshape(-1, tensor.shape[-1] if len(tensor.shape) > 1 else 1), 0
    for piece in pieces(tensor):
        floats = in_order(piece)
        check_numbers(model, tensor.name, floats)
        rows[at : at + len(floats)] = floats
        at += len(floats)
    return found


def _quantised(source: AnyModel, piece: StoredTensor, output: Output, error: Error) -> Bytes:
    """[rows, bytes of a row]; as it is, if it is so already."""
    raw = piece.raw
    floats = in_order(replace(piece, stored=raw))
    if piece.format.name != output.format or piece.order is not None:
        return encode_rows(source.name, output, floats, error)
    check_numbers(source.name, output.name, floats)
    error.add(floats, floats)
    return raw.reshape(len(floats), -1)


def check_numbers(model: str, name: str, floats: Floats) -> None:
    """Refuse what has no quantised form.

    Raises:
        ModelFileError: there are numbers that are none.
    """
    if not np.isfinite(floats).all():
        raise ModelFileError(
            f"{model}: tensor {name!r} has NaN or infinite numbers, which cannot be quantised: the file is damaged, or "
            "its training failed"
        )


def encode_rows(model: str, output: Output, floats: Floats, error: Error) -> Bytes:
    """Numbers [rows, width] as they will be stored: [rows, bytes of a row].

    Raises:
        ModelFileError: there are numbers that are none.
    """
    stored = quant.quantizer(output.format)
    check_numbers(model, output.name, floats)
    raw = stored.quantize(floats.reshape(-1, stored.block))
    error.add(floats, stored.dequantize(raw).reshape(floats.shape))
    return raw.reshape(len(floats), -1)


def turned(raw: Bytes, output: Output) -> Bytes:
    """Rows [rows, ..] of whole heads in the file's order."""
    return raw if output.turned is None else raw[turn_order(len(raw), output.turned)]
