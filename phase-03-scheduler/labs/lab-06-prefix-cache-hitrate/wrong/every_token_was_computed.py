"""As many tokens of answers were computed as were sampled.

The last token of an answer is sampled and never computed.

Refused by `test_hidden_work_by_hand`.
"""

from __future__ import annotations

from typing import Any

from course.learner.labs import load_solution

solution = load_solution(__file__)


def hidden_work(steps: Any, num_prompt_tokens: Any) -> int:
    names = {name for step in steps for name in step.sampled}
    return int(solution.hidden_work(steps, num_prompt_tokens)) - len(names)


def __getattr__(name: str) -> Any:
    return getattr(solution, name)
