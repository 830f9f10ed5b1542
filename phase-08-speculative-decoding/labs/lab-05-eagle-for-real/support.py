"""What the test file of lab 08-05 needs: the recorded runs, and texts made by hand."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from course.learner.labs import load_module

HERE = Path(__file__).resolve().parent


@cache
def recorded() -> dict[str, Any]:
    """What ask_vllm.py has recorded."""
    found: dict[str, Any] = json.loads((HERE / "recorded.json").read_text(encoding="utf-8"))
    return found


def requests() -> list[tuple[list[int], int]]:
    """What the head gets right in each recorded text, and how long that is."""
    kept = recorded()
    return list(zip(kept["right"], kept["plain"]["tokens"], strict=True))


def in_vllm(lab: ModuleType, k: int) -> Any:
    """vLLM's counters with k speculative tokens."""
    found = recorded()["runs"][str(k)]["counters"]
    return lab.Counters(
        found["num_drafts"], found["num_draft_tokens"], found["num_accepted_tokens"],
        tuple(found["num_accepted_tokens_per_pos"]),
    )  # fmt: skip


def in_engine() -> ModuleType:
    """The script that runs this course's engine."""
    return load_module(HERE / "in_engine.py", "lab_08_05_in_engine")


def near(got: object, want: float, what: str, rel: float = 1e-9) -> None:
    """`got` is `want` up to rounding."""
    assert isinstance(got, int | float), f"{what}: a number is asked for, not {got!r}"
    assert abs(got - want) <= rel * abs(want) + 1e-12, f"{what}: {want:.6g}, not {got:.6g}"
