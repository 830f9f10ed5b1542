"""Lab 03-06: what its tests share: the capture, short ways to write steps, and comparisons that teach."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from course.learner.labs import load_module

predictions = load_module(Path(__file__).resolve().parent / "predictions.py", "lab_03_06_shared")


@cache
def captured() -> tuple[Any, ...]:
    """The records of the committed capture, without the line that says how it was made."""
    return tuple(predictions.read_capture()[1:])


def named(name: str, group: str | None = None) -> Any:
    """The record of one workload."""
    [line] = [
        line for line in captured() if line["name"] == name and group in (None, line["group"])
    ]
    return line


def same_as_vllm(lab: Any, what: str, rule: str) -> None:
    """Every prediction whose name begins with `what` is what vLLM said."""
    compared = 0
    for line in captured():
        for name, theirs, yours in predictions.predict(lab, line):
            if name.startswith(what):
                compared += 1
                assert theirs == yours, (
                    f"{line['group']}, {line['name']}, {name}: vLLM does not say {yours!r}. {rule}"
                )
    assert compared, f"the capture has nothing called {what!r}: do not change it"


def step(
    lab: Any, looks: str = "", computed: dict[str, int] | None = None, sampled: str = ""
) -> Any:
    """A step. Look-ups are written `name/tokens/hits`, with `!` behind who was preempted before."""
    made = []
    for look in looks.split():
        name, num_tokens, num_hits = look.rstrip("!").split("/")
        made.append(lab.Lookup(name, int(num_tokens), int(num_hits), look.endswith("!")))
    return lab.Step(tuple(made), computed or {}, frozenset(sampled.split()))


def visit(lab: Any, tokens: str, **more: Any) -> Any:
    """A visit. Each character is a token."""
    return lab.Visit(tuple(map(ord, tokens)), **more)
