"""low is expected to be the victim, as it is at the pin.

An engine that takes somebody else, or lets the important one wait, is right as well. Ask for the texts,
and for hits only where somebody came back.

Refused by `test_your_test_passes_on_every_mend`.
"""

from __future__ import annotations

from typing import Any

from course.learner.labs import load_solution

solution = load_solution(__file__)
right = solution.incident_test


def incident_test(make_engine: Any) -> None:
    right(make_engine)
    for case in solution.CASES:
        pool = (case.num_gpu_blocks, case.block_size, case.chunk)
        engine = solution.run(make_engine(*pool), case.jobs)
        assert engine.preempted[:1] == ["low"], f"preempted were {engine.preempted}"


solution.incident_test = incident_test


def __getattr__(name: str) -> Any:
    return getattr(solution, name)
