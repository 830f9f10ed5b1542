"""Lab 01-02: what its tests share: the given parts, and a comparison that teaches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from course.learner.labs import load_module

HERE = Path(__file__).resolve().parent
engines = load_module(HERE / "engines.py", "lab_01_02_engines_of_the_test")
listening = engines.listening
FIELDS = (
    "number", "context_requests", "context_tokens", "generation_requests", "generation_tokens",
)  # fmt: skip


def same_lines(got: Any, want: list[Any], rule: str) -> None:
    """Two lists of iterations are equal; else the first field that is not, and the rule."""
    assert isinstance(got, list), f"return a list of Iteration, got {type(got).__name__}"
    for number, (mine, due) in enumerate(zip(got, want, strict=False)):
        assert len(mine) == 5, f"line {number}: an Iteration has five numbers, got {len(mine)}"
        for field, a, b in zip(FIELDS, mine, due, strict=True):
            assert (type(a), a) == (int, b), (
                f"line {number}: {field} should be {b}, got {a!r}. {rule}"
            )
    assert len(got) == len(want), f"there are {len(want)} lines, yours are {len(got)}. {rule}"
