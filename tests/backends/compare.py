"""How results are compared: within a case's tolerance, or bit for bit."""

from __future__ import annotations

import numpy as np

from pagoda.backends.ops import Floats

from .cases import Case

Results = list[dict[str, Floats]]


def _check_shapes(got: Results, want: Results) -> None:
    assert [{name: x.shape for name, x in step.items()} for step in got] == [
        {name: x.shape for name, x in step.items()} for step in want
    ]
    assert all(x.dtype == np.float32 for step in got for x in step.values())


def assert_close(case: Case, got: Results, want: Results) -> None:
    """Within `case.tolerance`."""
    _check_shapes(got, want)
    for i, step in enumerate(want):
        for name, x in step.items():
            wide = x.astype(np.float64)
            if case.elementwise:
                scale = np.abs(wide)
            else:
                scale = np.sqrt((wide * wide).mean(axis=1, keepdims=True))
                if i == 0 and name in case.floor:
                    scale = np.maximum(scale, case.floor[name][:, None])
            # Beside the relative error, what is lost where results leave the range of normal f32.
            limit = case.tolerance * scale + (1e-30 if case.tolerance else 0)
            error = np.abs(got[i][name] - wide)
            wrong = ~(error <= limit)
            assert not wrong.any(), (
                f"step {i}, {name}: {wrong.sum()} of {wrong.size} numbers, first at {np.argwhere(wrong)[0]}: "
                f"{got[i][name][wrong][0]} instead of {x[wrong][0]}; worst {(error / limit).max():.3g} times the limit"
            )


def assert_same(got: Results, want: Results, what: str) -> None:
    """Bit for bit."""
    _check_shapes(got, want)
    for i, step in enumerate(want):
        for name, x in step.items():
            wrong = got[i][name].view(np.uint32) != x.view(np.uint32)
            assert not wrong.any(), (
                f"{what}: step {i}, {name}: {wrong.sum()} of {wrong.size} numbers, first at {np.argwhere(wrong)[0]}: "
                f"{got[i][name][wrong][0]!r} instead of {x[wrong][0]!r}"
            )
