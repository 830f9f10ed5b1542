"""What the test file of lab 07-05 needs: the recorded profile, and traces made by hand."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

HERE = Path(__file__).resolve().parent


@cache
def profile() -> dict[str, Any]:
    """What ask_vllm.py has recorded."""
    found: dict[str, Any] = json.loads((HERE / "profile.json").read_text(encoding="utf-8"))
    return found


def recorded_step(lab: ModuleType) -> Any:
    """The decode step of 16 requests that was kept whole."""
    trace = json.loads((HERE / "step.trace.json").read_text(encoding="utf-8"))
    [step] = lab.steps_of(trace)
    return step


def calls(lab: ModuleType, *rows: tuple[str, float, float]) -> list[Any]:
    """Events by name, start and end."""
    return [lab.Event(name, start, end - start) for name, start, end in rows]


def near(got: object, want: float, what: str, rel: float = 1e-9) -> None:
    """`got` is `want` up to rounding."""
    assert isinstance(got, int | float), f"{what}: a number is asked for, not {got!r}"
    assert abs(got - want) <= rel * abs(want) + 1e-12, f"{what}: {got:.6g}, not {want:.6g}"
