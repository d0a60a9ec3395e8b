"""From a model and the formats in question to verdicts: `pagoda eval`.

    evaluate("smollm2", Wanted(kv_formats=("int8",))) -> Evaluation

Opens the model's file, sets the same work to every format and judges it beside the finer one: the same weights with f16
keys and values, the dense weights, or another file.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass

from pagoda.catalog import Progress, open_model
from pagoda.gate import shelf
from pagoda.gate.bench import Bench, Tell, Wanted
from pagoda.gate.fallback import fall_back
from pagoda.gate.verdict import AtLength, Verdict


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What came of it."""

    model: str
    against: str
    """What everything was compared with."""
    reference: tuple[AtLength, ...]
    """Its own perplexity, needles and loops."""
    verdicts: tuple[Verdict, ...]


def evaluate(
    model: str, wanted: Wanted, *, fetching: Progress | None = None, tell: Tell = lambda *_: None
) -> Evaluation:
    """Measure and judge; verdicts are kept for `auto`, unless the work was `quick`.

    Args:
        model: a built-in name, a path or a Hugging Face id.
        wanted: formats and work.
        fetching: is told how far a download is.
        tell: is told how much is done of how much, in rows; what is to be done may grow.

    Raises:
        InvalidConfig: formats or lengths that this model has not, or models that cannot be compared.
        UnknownModel, ModelError, MemoryLimit: a model cannot be loaded, or not beside the others.
    """
    with ExitStack() as files:
        source = other = open_model(model, progress=fetching)
        files.callback(source.close)
        if wanted.against is not None:
            other = open_model(wanted.against, progress=fetching)
            files.callback(other.close)
        bench = Bench(model, source, (wanted.against or model, other), wanted, tell)
        reference, verdicts = bench.judge([bench.subject(*each) for each in wanted.formats()])
        if wanted.mixed:
            for verdict in [v for v in verdicts if not v.passed]:
                if found := fall_back(bench, verdict):
                    verdicts.append(found)
    if not wanted.quick:
        for verdict in verdicts:
            shelf.keep(verdict)
    return Evaluation(model, bench.against, reference, tuple(verdicts))
