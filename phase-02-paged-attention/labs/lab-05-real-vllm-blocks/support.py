"""Lab 02-05: what its tests share: the capture, and comparisons that teach."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from course.learner.labs import load_module

predictions = load_module(Path(__file__).resolve().parent / "predictions.py", "lab_02_05_shared")


@cache
def captured() -> tuple[Any, ...]:
    """The records of the committed capture, without the line that says how it was made."""
    return tuple(predictions.read_capture()[1:])


def of_kind(kind: str) -> list[Any]:
    """The records of one kind."""
    return [line for line in captured() if line["kind"] == kind]


def named(name: str) -> Any:
    """The record of one run."""
    [line] = [line for line in captured() if line["name"] == name]
    return line


def same_as_vllm(lab: Any, kind: str, rule: str) -> None:
    """Every prediction for the runs of a kind is what vLLM said."""
    for line in of_kind(kind):
        for what, theirs, yours in predictions.predict(lab, line):
            assert theirs == yours, f"{line['name']}, {what}: vLLM does not say {yours!r}. {rule}"


def equal(got: Any, want: Any, what: str) -> None:
    """The same number, of the same type."""
    assert (type(got), got) == (type(want), want), f"{what}: {want!r}, got {got!r}"
