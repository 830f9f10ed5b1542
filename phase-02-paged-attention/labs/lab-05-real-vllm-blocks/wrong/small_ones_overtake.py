"""A request is looked at for itself, though another waits in front of it.

vLLM's loop ends at the first that does not get its blocks. Those behind it wait too, however small they
are and however many blocks are free.

Refused by `test_four_questions_before_the_blocks`.
"""

from __future__ import annotations

from typing import Any

from course.learner.labs import load_solution

solution = load_solution(__file__)
original = solution.why_waiting


def why_waiting(moment: Any) -> Any:
    from dataclasses import replace

    return original(replace(moment, ahead=0))


def __getattr__(name: str) -> Any:
    return getattr(solution, name)
