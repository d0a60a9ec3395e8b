"""From a model and the formats in question to verdicts: `pagoda eval`.

    evaluate("smollm2", Wanted(kv_formats=("int8",))) -> Evaluation

Opens the model's file, packs each set of weights once, sets the same work to every format and judges it beside the
finer one: the same weights with f16 keys and values, the dense weights, or another file.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime

from pagoda.catalog import AnyModel, Progress, Quantized, open_model
from pagoda.config import EngineConfig, ModelConfig
from pagoda.errors import InvalidConfig
from pagoda.gate import shelf
from pagoda.gate.choose import changes
from pagoda.gate.judge import at_lengths, judge
from pagoda.gate.measure import Measured, measure
from pagoda.gate.subject import Net, Subject
from pagoda.gate.verdict import AtLength, Verdict
from pagoda.gate.work import Work, set_work
from pagoda.models import read_config
from pagoda.runner.load import fingerprint
from pagoda.text.tokenizer import Tokenizer

KV_FORMATS = ("int8", "int4")
"""What is measured if nothing is asked: each KV format smaller than the default."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What to measure."""

    kv_formats: tuple[str, ...] = ()
    """None of both: `KV_FORMATS`; with `against`, f16."""
    weights: tuple[str, ...] = ()
    """What dense weights become, each with each KV format."""
    against: str | None = None
    """The model to compare with; None: this one, with the weights of its file and f16 keys and values."""
    lengths: tuple[int, ...] | None = None
    quick: bool = False
    """A third of the work; the verdict is not kept."""
    activations: str = "int16"
    threads: int | None = None

    def formats(self) -> list[tuple[str | None, str]]:
        """Pairs of weights and KV format."""
        kv = self.kv_formats or (("f16",) if self.weights or self.against else KV_FORMATS)
        return [(q, k) for q in self.weights or (None,) for k in kv]


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What came of it."""

    model: str
    against: str
    """What everything was compared with."""
    reference: tuple[AtLength, ...]
    """Its own perplexity, needles and loops."""
    verdicts: tuple[Verdict, ...]


class _Loader:
    """Makes subjects of one activation format; each set of weights is packed once."""

    def __init__(self, wanted: Wanted, positions: int) -> None:
        self._wanted, self._positions = wanted, positions
        self._nets: dict[tuple[str, str | None], Net] = {}

    def subject(self, name: str, source: AnyModel, quantize: str | None, kv_format: str) -> Subject:
        file = source if quantize is None or isinstance(source, Quantized) else Quantized(source, quantize)
        if quantize is not None and not changes(source, file):
            raise InvalidConfig(
                f"{name} has no dense weights that could become {quantize}: they are quantised already; "
                "to judge them, name the dense model as --against"
            )
        config = ModelConfig(name, self._wanted.activations, kv_format, None, quantize)
        net = self._nets.get((name, quantize))
        if net is None:
            net = Net(file, self._positions, config.activations, self._wanted.threads)
            self._nets[name, quantize] = net
        variant = net.model.config.variant(net.positions)
        return Subject(net, config, fingerprint(file.digest(), EngineConfig(config), net.backend, variant))


def evaluate(
    model: str, wanted: Wanted, *, fetching: Progress | None = None, tell: Callable[[int, int], None] = lambda *_: None
) -> Evaluation:
    """Measure and judge; verdicts are kept for `auto`, unless the work was `quick`.

    Args:
        model: a built-in name or a path.
        wanted: formats and work.
        fetching: is told how far a download is.
        tell: is told how much is done of how much, in rows.

    Raises:
        InvalidConfig: formats or lengths that this model has not, or models that cannot be compared.
        UnknownModel, ModelError, MemoryLimit: a model cannot be loaded, or not beside the others.
    """
    formats = wanted.formats()
    with ExitStack() as files:
        source = finer = open_model(model, progress=fetching)
        files.callback(source.close)
        name = model
        if wanted.against is not None:
            finer, name = open_model(wanted.against, progress=fetching), wanted.against
            files.callback(finer.close)
        shapes = [read_config(each) for each in (source, finer)]
        if shapes[0].vocabulary != shapes[1].vocabulary:
            raise InvalidConfig(
                f"{model} has {shapes[0].vocabulary} tokens and {name} {shapes[1].vocabulary}: they cannot be compared"
            )
        context = min(shape.context for shape in shapes)
        work = set_work(Tokenizer.from_metadata(source.metadata), context, wanted.lengths, wanted.quick)
        loader = _Loader(wanted, work.positions)
        kv = "f32" if formats == [(None, "f16")] and wanted.against is None else "f16"
        subjects = [loader.subject(name, finer, None, kv)]
        subjects += [loader.subject(model, source, *each) for each in formats]
        digest = source.digest()
    found = _measured(subjects, work, tell)
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    against = f"{name} as it is, {kv} KV"
    verdicts = tuple(
        Verdict(
            fingerprint=subject.fingerprint,
            model=model,
            source=digest,
            quantize=subject.config.quantize,
            kv_format=subject.config.kv_format,
            activations=subject.config.activations,
            against=against,
            against_fingerprint=subjects[0].fingerprint,
            date=now,
            findings=judge(found[0], each),
            lengths=at_lengths(each),
        )
        for subject, each in zip(subjects[1:], found[1:], strict=True)
    )
    if not wanted.quick:
        for verdict in verdicts:
            shelf.keep(verdict)
    return Evaluation(model, against, at_lengths(found[0]), verdicts)


def _measured(subjects: Sequence[Subject], work: Work, tell: Callable[[int, int], None]) -> list[Measured]:
    done, total = 0, work.rows * len(subjects)

    def tick(rows: int) -> None:
        nonlocal done
        done += rows
        tell(done, total)

    for subject in subjects:
        subject.tick = tick
    return measure(subjects, work)
