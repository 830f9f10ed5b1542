"""What a preempted request finds again is not called a hit.

That holds for `vllm:prefix_cache_hits`. The source of the prompt tokens is noted at each look-up before the
first token, whoever computed the blocks.

Refused by `test_its_own_work_is_called_a_hit`.
"""

from __future__ import annotations

from typing import Any

from course.learner.labs import load_solution

solution = load_solution(__file__)


def by_source(steps: Any, num_prompt_tokens: Any) -> Any:
    fresh = [
        step._replace(lookups=tuple(look for look in step.lookups if not look.preempted))
        for step in steps
    ]
    return solution.by_source(fresh, num_prompt_tokens)


def __getattr__(name: str) -> Any:
    return getattr(solution, name)
