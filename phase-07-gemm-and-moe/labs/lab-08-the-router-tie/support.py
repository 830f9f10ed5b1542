"""What the test file of lab 07-08 needs: recorded runs, and made-up ones."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

HERE = Path(__file__).resolve().parent
NOISE = 1e-4


@cache
def ties() -> dict[str, Any]:
    """What search.py has recorded."""
    found: dict[str, Any] = json.loads((HERE / "ties.json").read_text(encoding="utf-8"))
    return found


@cache
def in_vllm() -> dict[str, Any]:
    """What in_vllm.py has recorded."""
    found: dict[str, Any] = json.loads((HERE / "vllm.json").read_text(encoding="utf-8"))
    return found


def as_run(lab: ModuleType, raw: dict[str, Any]) -> Any:
    """A recorded run as the lab's functions take it."""
    return lab.Run(
        np.array(raw["router"], np.float32),
        np.array(raw["experts"], np.int64),
        np.array(raw["logits"], np.float32),
    )


def made(
    lab: ModuleType,
    router: list[list[float]],
    logits: list[float],
    experts: list[list[int]] | None = None,
) -> Any:
    """A run of two experts per token by its numbers; the router's own choice where none is given."""
    table = np.array(router, np.float32)
    chosen = (
        np.argsort(-table, axis=-1, kind="stable")[:, :2] if experts is None else np.array(experts)
    )
    return lab.Run(table, chosen.astype(np.int64), np.array(logits, np.float32))


def same(got: object, want: float, what: str, rel: float = 1e-5) -> None:
    """`got` is `want` up to rounding."""
    assert isinstance(got, float | np.floating), f"{what}: a float is asked for, not {got!r}"
    assert abs(float(got) - want) <= rel * abs(want) + 1e-12, (
        f"{what}: {float(got):.7g}, not {want:.7g}"
    )
