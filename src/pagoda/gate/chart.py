"""An evaluation as a picture: six small charts in one SVG, written by hand so that nothing need be installed for it.

Knows what is measured, and the limits; measures nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from math import ceil, floor, log10

from pagoda.gate.evaluate import Evaluation
from pagoda.gate.judge import AGREEMENT, DIVERGENCE
from pagoda.gate.verdict import AtLength

_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
"""Told apart by everybody (Okabe & Ito 2008)."""
_GREY = "#777777"
_WIDE, _HIGH, _LEFT, _TOP, _GAP = 250, 170, 60, 84, 74
"""Of one chart, and the room around it."""


@dataclass(frozen=True, slots=True)
class _Axis:
    """From a value to a height in a chart."""

    low: float
    high: float
    logarithmic: bool
    ticks: tuple[float, ...]
    show: Callable[[float], str]

    def y(self, value: float) -> float:
        low, high, at = (log10(max(v, 1e-12)) if self.logarithmic else v for v in (self.low, self.high, value))
        return _HIGH * (1 - (min(max(at, low), high) - low) / (high - low))


@dataclass(frozen=True, slots=True)
class _Panel:
    title: str
    value: Callable[[AtLength], float]
    with_reference: bool
    logarithmic: bool = False
    percent: bool = False
    limit: float | None = None


def _part(some: int, whole: int) -> float:
    return some / whole if whole else 0.0


_PANELS = (
    _Panel("Mean KL, nats (lower is better)", lambda a: a.divergence, False, logarithmic=True, limit=DIVERGENCE),
    _Panel("Same likeliest token", lambda a: a.agreement, False, percent=True, limit=AGREEMENT),
    _Panel("Perplexity (lower is better)", lambda a: a.perplexity, True),
    _Panel("Needles found", lambda a: _part(a.needles, a.of_needles), True, percent=True),
    _Panel("Continuations that loop", lambda a: _part(a.loops, a.of_loops), True, percent=True),
)


def draw(found: Evaluation) -> str:
    """An SVG document: each measure over the context's length, limits dashed, and how many answers were right."""
    series = [
        (v.format, colour, v.lengths) for v, colour in zip(found.verdicts, _cycle(len(found.verdicts)), strict=True)
    ]
    reference = ("reference", _GREY, found.reference)
    width, height = 3 * (_WIDE + _GAP) + 20, _TOP + 2 * (_HIGH + _GAP)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        'font-family="sans-serif" font-size="11">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
        f'<text x="20" y="24" font-size="15">{escape(found.model)} against {escape(found.against)}</text>',
        *_legend([reference, *series]),
    ]
    for i, panel in enumerate(_PANELS):
        shown = [reference, *series] if panel.with_reference else series
        parts += _placed(i, panel.title, _lines(panel, shown))
    bars = [("reference", _GREY, found.verdicts[0]["answers"].reference)]
    bars += [(name, colour, v["answers"].value) for (name, colour, _), v in zip(series, found.verdicts, strict=True)]
    parts += _placed(len(_PANELS), "Right answers", _bars(bars, found.verdicts[0]["answers"].of))
    return "\n".join([*parts, "</svg>", ""])


def _cycle(count: int) -> list[str]:
    return [_COLOURS[i % len(_COLOURS)] for i in range(count)]


def _legend(series: Sequence[tuple[str, str, tuple[AtLength, ...]]]) -> list[str]:
    parts, x = [], 20.0
    for name, colour, _ in series:
        parts.append(f'<rect x="{x:.0f}" y="38" width="12" height="12" fill="{colour}"/>')
        parts.append(f'<text x="{x + 17:.0f}" y="48">{escape(name)}</text>')
        x += 40 + 6.2 * len(name)
    return parts


def _placed(i: int, title: str, inner: list[str]) -> list[str]:
    x, y = _LEFT + i % 3 * (_WIDE + _GAP), _TOP + i // 3 * (_HIGH + _GAP)
    heading = f'<text x="0" y="-8" font-weight="bold">{escape(title)}</text>'
    frame = f'<rect width="{_WIDE}" height="{_HIGH}" fill="none" stroke="#cccccc"/>'
    return [f'<g transform="translate({x} {y})">', heading, frame, *inner, "</g>"]


def _lines(panel: _Panel, series: Sequence[tuple[str, str, tuple[AtLength, ...]]]) -> list[str]:
    """One line of dots for each format; lengths at even distances."""
    axis = _axis(panel, [panel.value(at) for _, _, lengths in series for at in lengths])
    tokens = [at.tokens for at in series[0][2]]
    xs = [_WIDE * (i + 0.5) / len(tokens) for i in range(len(tokens))]
    parts = _ticks(axis)
    parts += [
        f'<text x="{x:.1f}" y="{_HIGH + 15}" text-anchor="middle">{n}</text>' for x, n in zip(xs, tokens, strict=True)
    ]
    parts.append(f'<text x="{_WIDE / 2}" y="{_HIGH + 30}" text-anchor="middle" fill="#555555">tokens of context</text>')
    if panel.limit is not None and axis.low <= panel.limit <= axis.high:
        y = axis.y(panel.limit)
        parts.append(f'<line x1="0" x2="{_WIDE}" y1="{y:.1f}" y2="{y:.1f}" stroke="#cc0000" stroke-dasharray="5 3"/>')
        parts.append(f'<text x="{_WIDE - 4}" y="{y - 4:.1f}" text-anchor="end" fill="#cc0000">limit</text>')
    for i, (_, colour, lengths) in enumerate(series):
        ys = [axis.y(panel.value(at)) for at in lengths]
        aside = 7 * (i - (len(series) - 1) / 2)  # else equal figures would hide each other
        points = " ".join(f"{x + aside:.1f},{y:.1f}" for x, y in zip(xs, ys, strict=True))
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.5"/>')
        parts += [
            f'<circle cx="{x + aside:.1f}" cy="{y:.1f}" r="3.5" fill="{colour}"/>' for x, y in zip(xs, ys, strict=True)
        ]
    return parts


def _bars(bars: Sequence[tuple[str, str, float]], of: int) -> list[str]:
    step = _WIDE / len(bars)
    parts = _ticks(_Axis(0, 1, False, (0, 0.25, 0.5, 0.75, 1), "{:.0%}".format))
    for i, (_, colour, count) in enumerate(bars):
        high = _HIGH * count / of
        x = (i + 0.2) * step
        parts.append(
            f'<rect x="{x:.1f}" y="{_HIGH - high:.1f}" width="{step * 0.6:.1f}" height="{high:.1f}" fill="{colour}"/>'
        )
        label = f"{count:g} of {of}"
        parts.append(f'<text x="{x + step * 0.3:.1f}" y="{_HIGH + 15}" text-anchor="middle">{label}</text>')
    return parts


def _ticks(axis: _Axis) -> list[str]:
    parts = []
    for tick in axis.ticks:
        y = axis.y(tick)
        parts.append(f'<line x1="0" x2="{_WIDE}" y1="{y:.1f}" y2="{y:.1f}" stroke="#eeeeee"/>')
        parts.append(f'<text x="-6" y="{y + 4:.1f}" text-anchor="end">{escape(axis.show(tick))}</text>')
    return parts


def _axis(panel: _Panel, values: Sequence[float]) -> _Axis:
    """From 0 for parts and perplexities; agreement and divergence are shown as closely as they need."""
    if panel.logarithmic:
        seen = [max(v, 1e-9) for v in [*values, panel.limit or values[0]]]
        first, last = floor(log10(min(seen))), ceil(log10(max(seen) * 1.001))
        return _Axis(10.0**first, 10.0**last, True, tuple(10.0**i for i in range(first, last + 1)), "{:.0e}".format)
    if panel.limit is not None:
        low = floor(min([*values, panel.limit]) * 20 - 0.2) / 20
        count = round((1 - low) * 20)
        ticks = tuple(1 - i * 0.05 for i in range(0, count + 1, max(1, count // 5)))
        return _Axis(low, 1, False, ticks, "{:.0%}".format)
    if panel.percent:
        return _Axis(0, 1, False, (0, 0.25, 0.5, 0.75, 1), "{:.0%}".format)
    unit = 10.0 ** floor(log10(max(*values, 1e-9)))
    high = ceil(max(values) * 1.05 / unit) * unit
    return _Axis(0, high, False, tuple(high * i / 4 for i in range(5)), "{:.3g}".format)
