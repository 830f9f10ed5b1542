"""What the test files of lab 06-08 share."""

from __future__ import annotations

import math
from types import ModuleType
from typing import Any


def same(got: object, want: float, what: str) -> None:
    """`got` is `want` up to rounding; else both numbers, and what they are of."""
    assert type(got) in (int, float), f"{what}: return a number, got {got!r}"
    digits = 6 if f"{got:.6g}" != f"{want:.6g}" else 12
    assert math.isclose(got, want, rel_tol=1e-9, abs_tol=1e-18), (
        f"{what}: {got:.{digits}g}, not {want:.{digits}g}"
    )


def pair(got: object, want: tuple[float, float], what: str) -> None:
    """`got` is a pair of times, by reading and by computing."""
    assert isinstance(got, tuple | list), f"{what}: a pair, got {got!r}"
    assert len(got) == 2, f"{what}: two numbers, got {got!r}"
    same(got[0], want[0], f"{what}, by reading")
    same(got[1], want[1], f"{what}, by computing")


def plain_card(lab: ModuleType, **changed: Any) -> Any:
    """1 TB/s and 100 TFLOP/s, so the ridge is 100 operations a byte; no fp8."""
    rates = {"flops": 100e12, "bandwidth": 1e12, "int8": 200e12, "fp8": None, "memory": 10e9}
    return lab.Card("plain card", **(rates | changed))


def small_model(lab: ModuleType, **changed: Any) -> Any:
    """Two layers of 120 weights each, a table of 10 by 4."""
    shape = {
        "layers": 2, "hidden": 4, "mlp": 6, "heads": 2, "kv_heads": 1, "head_size": 2, "vocab": 10,
    }  # fmt: skip
    return lab.Model("small", **(shape | changed))


def matrices(model: Any) -> list[tuple[int, int]]:
    """The linears of one layer, one by one: numbers out, numbers in."""
    q, kv = model.heads * model.head_size, model.kv_heads * model.head_size
    return [
        (q, model.hidden), (kv, model.hidden), (kv, model.hidden), (model.hidden, q),
        (model.mlp, model.hidden), (model.mlp, model.hidden), (model.hidden, model.mlp),
    ]  # fmt: skip
