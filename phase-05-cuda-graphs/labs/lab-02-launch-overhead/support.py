"""What the test files of lab 05-02 share."""

from __future__ import annotations

import math


def same(got: object, want: float, what: str) -> None:
    """`got` is `want` up to rounding; else the numbers, and what they are of."""
    assert type(got) in (int, float), f"{what}: return a number, got {got!r}"
    assert math.isclose(got, want, rel_tol=1e-9, abs_tol=1e-15), (
        f"{what}: {got:.6g}, not {want:.6g}"
    )
