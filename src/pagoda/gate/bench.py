"""What is to be measured, and the bench it is measured on: loaded models, each in several formats, and their work."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from pagoda.catalog import AnyModel, Quantized
from pagoda.config import FINER, EngineConfig, ModelConfig, split_format
from pagoda.errors import InvalidConfig
from pagoda.gate.choose import changes
from pagoda.gate.judge import at_lengths, judge
from pagoda.gate.measure import Measured, divergences, measure
from pagoda.gate.subject import Net, Subject
from pagoda.gate.verdict import AtLength, Verdict
from pagoda.gate.work import set_work
from pagoda.models import read_config
from pagoda.runner.load import fingerprint
from pagoda.text.tokenizer import Tokenizer

Tell = Callable[[int, int], None]
"""Is told how much is done of how much, in rows; what is to be done may grow."""
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
    mixed: bool = False
    """For each format that fails, look for layers that need the finer one (`fall_back`)."""
    quick: bool = False
    """A third of the work; the verdict is not kept."""
    activations: str = "int16"
    threads: int | None = None

    def formats(self) -> list[tuple[str | None, str]]:
        """Pairs of weights and KV format."""
        kv = self.kv_formats or (("f16",) if self.weights or self.against else KV_FORMATS)
        return [(q, k) for q in self.weights or (None,) for k in kv]


class Bench:
    """Models that are loaded, and the work that is set to them; each set of weights is packed once.

    Args:
        model: what the user calls it.
        source: its file, open until all subjects are made.
        finer: name and file of what it is compared with.
        wanted: which work, activations and threads.
        tell: is told how much is done of how much, in rows.

    Raises:
        InvalidConfig: lengths that this model has not, or models that cannot be compared.
    """

    def __init__(
        self,
        model: str,
        source: AnyModel,
        finer: tuple[str, AnyModel],
        wanted: Wanted,
        tell: Tell = lambda *_: None,
    ) -> None:
        shapes = [read_config(each) for each in (source, finer[1])]
        if shapes[0].vocabulary != shapes[1].vocabulary:
            raise InvalidConfig(
                f"{model} has {shapes[0].vocabulary} tokens and {finer[0]} {shapes[1].vocabulary}: "
                "they cannot be compared"
            )
        self._model, self._source, self._wanted, self._tell = model, source, wanted, tell
        context = min(shape.context for shape in shapes)
        self.work = set_work(Tokenizer.from_metadata(source.metadata), context, wanted.lengths, wanted.quick)
        self._nets: dict[tuple[str, str | None], Net] = {}
        self._done = self._total = 0
        itself = wanted.against is None and (None, "f16") in wanted.formats()  # then f16 is no reference
        self.reference = self._subject(*finer, None, "f32" if itself else "f16")
        self.against = f"{finer[0]} as it is, {self.reference.config.kv_format} KV"

    def subject(self, quantize: str | None, kv_format: str) -> Subject:
        """The model itself, in these formats."""
        return self._subject(self._model, self._source, quantize, kv_format)

    def divergences(self, subjects: Sequence[Subject]) -> list[float]:
        """Mean KL(reference || subject) of each, at the end of the shortest passage."""
        passage = self.work.passages[0]
        self._begin([self.reference, *subjects], passage.length)
        return divergences([self.reference, *subjects], passage)

    def judge(self, subjects: Sequence[Subject]) -> tuple[tuple[AtLength, ...], list[Verdict]]:
        """Set all of the work to them: how the reference did, and the verdicts."""
        self._begin([self.reference, *subjects], self.work.rows)
        first, *found = measure([self.reference, *subjects], self.work)
        verdicts = [self._verdict(subject, first, each) for subject, each in zip(subjects, found, strict=True)]
        return at_lengths(first), verdicts

    def _subject(self, name: str, source: AnyModel, quantize: str | None, kv_format: str) -> Subject:
        config = ModelConfig(name, self._wanted.activations, kv_format, None, quantize)
        file = source if quantize is None or isinstance(source, Quantized) else Quantized(source, quantize)
        if quantize is not None and not changes(source, file):
            raise InvalidConfig(
                f"{name} has no dense weights that could become {quantize}: they are quantised already; "
                "to judge them, name the dense model as --against"
            )
        net = self._net(name, file, quantize)
        variant = net.model.config.variant(net.positions)
        return Subject(net, config, fingerprint(file.digest(), EngineConfig(config), net.backend, variant))

    def _net(self, name: str, file: AnyModel, quantize: str | None) -> Net:
        """Its weights; those of some layers from another net, if these two are here."""
        made = self._nets.get((name, quantize))
        if made is None:
            base, layers = split_format(quantize or "")
            coarse, fine = self._nets.get((name, base)), self._nets.get((name, FINER.get(base)))
            if layers and coarse is not None and fine is not None:
                return coarse.with_layers(fine, layers)
            made = Net(file, self.work.positions, self._wanted.activations, self._wanted.threads)
            self._nets[name, quantize] = made
        return made

    def _begin(self, subjects: Sequence[Subject], rows: int) -> None:
        self._total += rows * len(subjects)
        for subject in subjects:
            subject.tick = self._tick

    def _tick(self, rows: int) -> None:
        self._done += rows
        self._tell(self._done, self._total)

    def _verdict(self, subject: Subject, reference: Measured, measured: Measured) -> Verdict:
        return Verdict(
            fingerprint=subject.fingerprint,
            model=self._model,
            source=self._source.digest(),
            quantize=subject.config.quantize,
            kv_format=subject.config.kv_format,
            activations=subject.config.activations,
            against=self.against,
            against_fingerprint=self.reference.fingerprint,
            date=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            findings=judge(reference, measured),
            lengths=at_lengths(measured),
        )
