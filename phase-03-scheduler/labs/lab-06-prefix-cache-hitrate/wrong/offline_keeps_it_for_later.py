"""What a silent step looked up is added to the next step with output.

The offline LLM drops it. The core has sent it with the step, and begins its next sum at zero.

Refused by `test_offline_drops_silent_steps`.
"""

from __future__ import annotations

from typing import Any

from course.learner.labs import load_solution

solution = load_solution(__file__)


def counters_offline(steps: Any) -> Any:
    loud = [place for place, step in enumerate(steps) if step.sampled]
    return solution.counters(steps[: loud[-1] + 1] if loud else [])


def __getattr__(name: str) -> Any:
    return getattr(solution, name)
