"""What several tests of the gate need: tiny models, and a format that is damaged on purpose."""

from __future__ import annotations

from copy import copy
from typing import Any

from pagoda.backends.ops import KVLayer, Ops, Value
from pagoda.gate.subject import Subject
from pagoda.gate.verdict import AtLength, Finding, Verdict
from pagoda.runner.runner import whole_model


class OffScale:
    """Verbs, but that keys and values are stored too large: as if a format's scales were off by a factor."""

    def __init__(self, ops: Ops, factor: float) -> None:
        self._ops, self._factor = ops, factor

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ops, name)

    def attend(self, q: Value, k: Value, v: Value, kv: KVLayer) -> Value:
        return self._ops.attend(q, self._ops.scale(k, self._factor), self._ops.scale(v, self._factor), kv)


def damage(subject: Subject, factor: float) -> Subject:
    """The same subject with the scales of its KV format off by a factor."""
    net = copy(subject.net)
    net.program = net.backend.program(lambda ops: whole_model(net.model, OffScale(ops, factor)))  # type: ignore[arg-type]
    return Subject(net, subject.config, subject.fingerprint + "-damaged")


def a_verdict(fingerprint: str = "pagoda-0", **fields: Any) -> Verdict:
    given = {
        "model": "m", "source": "0", "quantize": None, "kv_format": "int8", "activations": "int16",
        "against": "m, f16 KV", "against_fingerprint": "pagoda-1", "date": "2026-01-31T12:00:00Z",
        "findings": (Finding("divergence", 1e-4, 0.0, 2e-4, 0.02, True, 100),),
        "lengths": (AtLength(512, 1e-4, 0.99, 20.0, 3, 6, 1, 8),),
    }  # fmt: skip
    return Verdict(fingerprint, **{**given, **fields})
