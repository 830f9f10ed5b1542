"""It reads `num_cached_tokens` through `prompt_token_ids`' length.

Names that one engine has, or a test's request has not, are no part of what policies are told.

Refused by `test_a_policy_reads_and_no_more`.
"""

from __future__ import annotations

from typing import Any

from course.learner.labs import load_solution

solution = load_solution(__file__)


def policy(request: Any, now: float) -> Any:
    return (len(request.prompt_token_ids), solution.policy(request, now))


def make_scheduler(base: type, policy: Any = policy) -> Any:
    return solution.make_scheduler(base, policy)
