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


def same_lines(got: Any, want: list[Any], rule: str, lines: dict[int, str] | None = None) -> None:
    """Two lists of iterations are equal; else the first field that is not, and the rule.

    `lines` holds rules of single lines, which take the place of `rule` there.
    """
    compare(got, want, rule, lines or {}, FIELDS)


def same_counts(got: Any, want: list[Any], rule: str, lines: dict[int, str] | None = None) -> None:
    """The same without the numbers of the lines, which test_every_step_has_a_line looks at."""
    compare(got, want, rule, lines or {}, FIELDS[1:])


def compare(
    got: Any, want: list[Any], rule: str, lines: dict[int, str], fields: tuple[str, ...]
) -> None:
    """Two lists of iterations have the same `fields`."""
    assert isinstance(got, list), f"return a list of Iteration, got {type(got).__name__}"
    for number, (mine, due) in enumerate(zip(got, want, strict=False)):
        assert len(mine) == 5, f"line {number}: an Iteration has five numbers, got {len(mine)}"
        for field in fields:
            a, b = (line[FIELDS.index(field)] for line in (mine, due))
            assert type(a) is int, f"line {number}: the five fields are ints, got {a!r} for {field}"
            assert a == b, (
                f"line {number}: {field} should be {b!r}, got {a!r}. {lines.get(number, rule)}"
            )
    there = "is 1 line" if len(want) == 1 else f"are {len(want)} lines"
    assert len(got) == len(want), f"there {there}, you found {len(got)}. {rule}"
