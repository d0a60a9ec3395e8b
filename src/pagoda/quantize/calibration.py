"""Calibrated methods: each layer is run on a text, and its matrices are quantised so that what they give changes least.

One layer is in memory at a time, as numbers and packed, with the text's hidden states before and behind it. Layers of
awq read what the unquantised layers before them give, those of gptq what the quantised ones give, as in the papers.
Matrices whose inputs cannot be seen, a mixture's experts, are left to the plain method.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib import resources
from pathlib import Path

import numpy as np

from pagoda import quant
from pagoda.backends.cpu import CpuBackend, rope_table
from pagoda.backends.ops import Bytes, Floats, StoredTensor
from pagoda.catalog import AnyModel
from pagoda.errors import InvalidConfig, ModelFileError
from pagoda.quantize import awq, gptq
from pagoda.quantize.layout import Layout, Output, Unit
from pagoda.quantize.rows import Error, check_numbers, encode_rows, numbers, pieces, row_slices, turned
from pagoda.quantize.scaling import Group, Scaled, groups
from pagoda.quantize.statistics import Moments, Squares
from pagoda.quantize.tap import Layers
from pagoda.text.tokenizer import Tokenizer

CALIBRATED = ("awq", "gptq")
LENGTH = 512
"""Tokens of a sequence, at most."""
SAME = 1e-3
"""How far outputs may be off, relative to their size, for scaling to have changed nothing but rounding."""

Made = dict[str, tuple[Bytes, float, str]]
"""Tensor -> its bytes in the file's order, its relative error, and the method."""


def calibration_text(path: str | os.PathLike[str] | None) -> str:
    """A text file's content, or the text that comes with Pagoda.

    Raises:
        InvalidConfig: it cannot be read, or is empty.
    """
    if path is None:
        return resources.files("pagoda.quantize").joinpath("calibration.txt").read_text("utf-8")
    try:
        text = Path(path).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InvalidConfig(f"cannot read the calibration text {path}: {reason}") from None
    if not text.strip():
        raise InvalidConfig(f"the calibration text {path} is empty")
    return text


def _sequences(tokenizer: Tokenizer, text: str, length: int, tokens: int) -> list[list[int]]:
    """A text's first tokens in sequences, each begun as a prompt is."""
    ids, whole = tokenizer.encode(text), tokenizer.encode_prompt(text)
    before = list(whole[: len(whole) - len(ids)])
    step = max(1, length - len(before))
    ids = ids[:tokens]
    return [(before + list(ids[at : at + step]))[:length] for at in range(0, len(ids), step)]


class Calibrated:
    """Makes the tensors of one unit after the other."""

    def __init__(
        self, source: AnyModel, layout: Layout, method: str, threads: int | None, text: str, tokens: int
    ) -> None:
        self._source, self._config, self._method = source, layout.config, method
        length = min(LENGTH, layout.config.context)
        self._ids = _sequences(Tokenizer.from_metadata(source.metadata), text, length, tokens)
        self._layers = Layers(source, layout.config, CpuBackend("f32", threads), rope_table, length)
        self._hidden: list[Floats] = []
        self.notes: list[str] = []
        """Of the unit that was made last."""

    # --- what one unit hands to the next --------------------------------------------------------------------------

    def state(self) -> Floats:
        """Hidden states behind the last layer that was made, [tokens, width]."""
        return np.concatenate(self._hidden)

    def resume(self, state: Floats) -> None:
        """Go on from there."""
        self._hidden = np.split(state, np.cumsum([len(ids) for ids in self._ids])[:-1])

    # --- units ---------------------------------------------------------------------------------------------------

    def made(self, unit: Unit) -> Made:
        """A layer's tensors that this method makes; of anything else, none."""
        self.notes = []
        if unit.layer is None:
            if not self._hidden:
                (batch,) = self._source.batches(["token_embd.weight"])
                self.resume(self._layers.enter(batch[0], [i for ids in self._ids for i in ids]))
            return {}
        tensors = self._read(unit)
        outputs = {o.name: o for o in unit.outputs}
        made = (self._awq if self._method == "awq" else self._gptq)(unit.layer, tensors, outputs)
        if not all(np.isfinite(x).all() for x in self._hidden):
            raise ModelFileError(
                f"{self._source.name}: layer {unit.layer} gives NaN or infinite numbers for the calibration text: its "
                "weights are wrong, or too large to calibrate; --method plain does not run the model"
            )
        left = [n.split(".", 2)[2] for n, o in outputs.items() if n not in made and self._grid(o)]
        if left:
            self.notes.append(f"{', '.join(left)}: by the plain method, as their inputs are chosen by a router")
        return made

    def _read(self, unit: Unit) -> dict[str, StoredTensor]:
        names = [name for output in unit.outputs for name in output.sources]
        read = [tensor for batch in self._source.batches(names) for tensor in batch]
        tensors = {t.name: replace(t, stored=t.raw) for t in read}
        for tensor in tensors.values():
            for piece in pieces(tensor):
                check_numbers(self._source.name, tensor.name, piece.floats())
        return tensors

    def _grid(self, output: Output) -> quant.GridQuantizer | None:
        """The output's format, if it is one of scales and integers, of a matrix."""
        stored = quant.by_name(output.format)
        return stored if len(output.shape) > 1 and isinstance(stored, quant.GridQuantizer) else None

    def _matrices(self, sites: Mapping[str, Sequence[str]], outputs: Mapping[str, Output]) -> dict[str, str]:
        """Each matrix that is to be made -> the site where it is read."""
        whole = {part: name for name, parts in self._config.parts().items() for part in parts}
        read = {whole.get(name, name): site for site, names in sites.items() for name in names}
        return {name: site for name, site in read.items() if name in outputs and self._grid(outputs[name])}

    def _finished(self, output: Output, floats: Floats, raw: Bytes) -> tuple[Bytes, float, str]:
        error, stored = Error(), quant.by_name(output.format)
        for here in row_slices(*floats.shape):
            back = stored.dequantize(raw[here].reshape(-1, stored.block_bytes))
            error.add(floats[here], back.reshape(floats[here].shape))
        return turned(raw, output), error.relative, self._method

    # --- GPTQ ----------------------------------------------------------------------------------------------------

    def _gptq(self, i: int, tensors: dict[str, StoredTensor], outputs: Mapping[str, Output]) -> Made:
        seen: dict[str, Squares] = {}
        _, sites = self._layers.run(i, list(tensors.values()), self._hidden, Squares.collect(seen))
        matrices, made = self._matrices(sites, outputs), Made()
        for site in sites:
            names = [name for name, at in matrices.items() if at == site]
            upper = gptq.factor(seen.pop(site).sums) if names else None
            for name in names:
                floats, stored = numbers(self._source.name, tensors[name]), self._grid(outputs[name])
                assert stored is not None
                assert upper is not None
                raw = gptq.quantize_columns(floats, upper, stored)
                tensors[name] = StoredTensor(name, floats.shape, stored, raw.reshape(-1))
                made[name] = self._finished(outputs[name], floats, raw)
        self._hidden, _ = self._layers.run(i, list(tensors.values()), self._hidden)
        return made

    # --- AWQ -----------------------------------------------------------------------------------------------------

    def _awq(self, i: int, tensors: dict[str, StoredTensor], outputs: Mapping[str, Output]) -> Made:
        seen: dict[str, Moments] = {}
        after, sites = self._layers.run(i, list(tensors.values()), self._hidden, Moments.collect(seen))
        matrices = self._matrices(sites, outputs)
        scaled = Scaled(self._source.name, tensors, self._config, i)
        found = groups(self._config, i, sites, scaled.has)
        scales = {
            g.site: s for g in found if (s := self._search(g, seen[g.site], scaled, matrices, outputs)) is not None
        }
        (same,), _ = self._layers.run(i, scaled.tensors(), self._hidden[:1])
        apart = float(np.abs(same - after[0]).max() / np.abs(after[0]).max())
        if not apart < SAME:
            self.notes.append(f"layer {i}: left unscaled, as scaling changes what it gives by {apart:.1e} of its size")
            scaled, scales = Scaled(self._source.name, tensors, self._config, i), {}
        made = Made()
        for name, site in matrices.items():
            floats, counts = scaled.floats(name), seen[site].squares
            if site in scales:
                counts = counts / scales[site] ** 2
            made[name] = self._finished(outputs[name], floats, _nearest(floats, counts, outputs[name]))
        for name in scaled.changed - made.keys():
            floats, error = scaled.floats(name), Error()
            columns = floats if floats.ndim > 1 else floats.reshape(-1, 1)
            raw = turned(encode_rows(self._source.name, outputs[name], columns, error), outputs[name])
            made[name] = (raw, error.relative, self._method)
        self._hidden = after
        return made

    def _search(
        self, group: Group, seen: Moments, scaled: Scaled, matrices: Mapping[str, str], outputs: Mapping[str, Output]
    ) -> Floats | None:
        """Scale a group as is best for it; the scales of its inputs, if there are any."""
        names = [name for name, site in matrices.items() if site == group.site]
        if not names:
            return None
        scales = awq.search(
            seen.magnitudes, seen.samples, [scaled.floats(n) for n in names],
            [_rounding(outputs[n]) for n in names], group.repeats, group.size,
        )  # fmt: skip
        if scales is not None:
            scaled.apply(group, names, scales)
        return scales


def _rounding(output: Output) -> awq.Rounding:
    stored = quant.quantizer(output.format)

    def rounded(floats: Floats) -> Floats:
        return stored.dequantize(stored.quantize(floats.reshape(-1, stored.block))).reshape(floats.shape)

    return rounded


def _nearest(floats: Floats, counts: Floats, output: Output) -> Bytes:
    """[n, bytes of a row]: scales chosen so that errors weigh as much as the inputs they meet."""
    stored = quant.by_name(output.format)
    assert isinstance(stored, quant.GridQuantizer)
    weights = (counts / max(float(counts.mean()), 1e-30) + 1e-6).astype(np.float32)
    rows = []
    for here in row_slices(*floats.shape):
        blocks = floats[here].reshape(-1, stored.block)
        grid = stored.grid(blocks, np.broadcast_to(weights, floats[here].shape).reshape(blocks.shape))
        rows.append(stored.pack(grid, grid.nearest(blocks)).reshape(here.stop - here.start, -1))
    return np.concatenate(rows)
