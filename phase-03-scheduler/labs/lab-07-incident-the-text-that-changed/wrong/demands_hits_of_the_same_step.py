"""twin is expected to find what the same step computes.

mini_vllm publishes when it plans, so that a newcomer can share within a step. Who publishes afterwards
cannot, and is right too: only what earlier steps computed is owed.

Refused by `test_your_test_passes_on_every_mend`.
"""

from __future__ import annotations

from typing import Any

from course.learner.labs import load_solution

solution = load_solution(__file__)
right = solution.incident_test


def incident_test(make_engine: Any) -> None:
    right(make_engine)
    case = solution.CASES[-1]
    pool = (case.num_gpu_blocks, case.block_size, case.chunk)
    engine = solution.run(make_engine(*pool), case.jobs)
    assert engine.found["twin"] == [12], f"twin found {engine.found['twin']}"


solution.incident_test = incident_test


def __getattr__(name: str) -> Any:
    return getattr(solution, name)
