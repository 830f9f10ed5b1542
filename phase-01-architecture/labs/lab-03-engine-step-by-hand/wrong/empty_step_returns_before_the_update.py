"""An empty step returns before the memory is updated.

`execute_model` looks for tokens first, finds none and returns, so the worker never hears who has finished in
that step. Its message comes once: they are remembered for ever, with all their tokens. Update the memory
first, then look for tokens.

Refused by `test_an_empty_step_computes_nothing`.
"""

from __future__ import annotations

from typing import Any

from course.learner.labs import load_solution

solution = load_solution(__file__)
right = solution.HandEngine.execute_model


def execute_model(self: Any, output: Any) -> Any:
    if not output.num_scheduled_tokens:
        return None
    return right(self, output)


solution.HandEngine.execute_model = execute_model


def __getattr__(name: str) -> Any:
    return getattr(solution, name)
