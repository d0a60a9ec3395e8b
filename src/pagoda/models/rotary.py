"""Rotary frequencies, the same on every machine: powers in decimal arithmetic, not by the C library."""

from __future__ import annotations

from decimal import Context, Decimal


def frequencies(base: float, dims: int) -> list[float]:
    """base^(-2i / dims) for i below dims / 2 (Su et al. 2021, section 3.2.2), each correctly rounded to a double."""
    exact = Context(prec=40)
    log = exact.ln(Decimal(base))
    return [
        float(exact.exp(exact.multiply(log, exact.divide(Decimal(-2 * i), Decimal(dims))))) for i in range(dims // 2)
    ]
