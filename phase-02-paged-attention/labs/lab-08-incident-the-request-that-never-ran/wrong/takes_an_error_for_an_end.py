"""The test asks whether the request behind has ended, and not how.

An engine that gives up on everybody who has to wait ends all of them. But a full pool is no fault: the
one behind has room as soon as the first is through, so an error is the wrong answer. Ask for its tokens.

Refused by `test_your_test_fails_on_every_bad_mend`.
"""

from __future__ import annotations

from typing import Any

from course.learner.labs import load_solution

solution = load_solution(__file__)
right = solution.incident_test


class AnyEndWillDo:
    """An engine, but for how the request behind has ended."""

    def __init__(self, engine: Any) -> None:
        self.engine = engine

    @property
    def finished(self) -> dict[str, str]:
        ends = self.engine.finished
        return {name: "length" if name == "behind" else end for name, end in ends.items()}

    def __getattr__(self, name: str) -> Any:
        return getattr(self.engine, name)


def incident_test(make_engine: Any) -> None:
    right(lambda *sizes: AnyEndWillDo(make_engine(*sizes)))


solution.incident_test = incident_test


def __getattr__(name: str) -> Any:
    return getattr(solution, name)
