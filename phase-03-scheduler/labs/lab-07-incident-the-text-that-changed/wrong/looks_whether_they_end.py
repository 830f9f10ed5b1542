"""Everybody ends, so all is well.

The fault does not crash and does not hang; it gives all its tokens in time. Only the tokens
themselves show it, held against those that the request gets alone.

Refused by `test_your_test_fails_on_the_pin`.
"""

from __future__ import annotations

from typing import Any

from course.learner.labs import load_solution

solution = load_solution(__file__)


def incident_test(make_engine: Any) -> None:
    for case in solution.CASES:
        pool = (case.num_gpu_blocks, case.block_size, case.chunk)
        engine = solution.run(make_engine(*pool), case.jobs)
        assert set(case.jobs) == engine.finished


solution.incident_test = incident_test


def __getattr__(name: str) -> Any:
    return getattr(solution, name)
