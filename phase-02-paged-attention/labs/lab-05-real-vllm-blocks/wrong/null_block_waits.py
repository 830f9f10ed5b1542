"""A sequence as large as the whole pool is expected to fit when everybody else is gone.

The pool is num_gpu_blocks with the null block, and the free queue is one shorter even when nothing runs.
Such a sequence is refused in every step, for ever, and vLLM says nothing.

Refused by `test_more_than_the_usable_pool_waits_for_ever`.
"""

from __future__ import annotations

from typing import Any

from course.learner.labs import load_solution

solution = load_solution(__file__)
original = solution.why_waiting


def why_waiting(moment: Any) -> Any:
    from dataclasses import replace

    return original(replace(moment, num_gpu_blocks=moment.num_gpu_blocks + 1))


def __getattr__(name: str) -> Any:
    return getattr(solution, name)
