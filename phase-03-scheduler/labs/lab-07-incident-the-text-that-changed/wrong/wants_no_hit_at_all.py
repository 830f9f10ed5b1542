"""A victim that comes back is expected to find nothing, to be safe.

What earlier steps computed is still there and is sound. That a victim finds it again is what makes
preemption cheap.

Refused by `test_your_test_passes_on_every_mend`.
"""

from __future__ import annotations

from typing import Any

from course.learner.labs import load_solution

solution = load_solution(__file__)
right = solution.incident_test


def incident_test(make_engine: Any) -> None:
    right(make_engine)
    case = solution.CASES[1]
    pool = (case.num_gpu_blocks, case.block_size, case.chunk)
    engine = solution.run(make_engine(*pool), case.jobs)
    assert not any(engine.found["low"]), f"low found {engine.found['low']}"


solution.incident_test = incident_test


def __getattr__(name: str) -> Any:
    return getattr(solution, name)
