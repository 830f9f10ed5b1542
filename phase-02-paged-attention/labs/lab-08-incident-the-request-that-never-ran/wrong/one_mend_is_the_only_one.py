"""The test demands the mend that its author had in mind.

It wants every request that is too long to be refused at the door. An engine that will not start in
so small a pool, or lowers its max_model_len, or ends such a request with an error, is right as
well. Test what the user was promised: whoever is accepted comes to an end.

Refused by `test_your_test_passes_on_every_mend`.
"""

from __future__ import annotations

from typing import Any

from course.learner.labs import load_solution

solution = load_solution(__file__)
right = solution.incident_test


def incident_test(make_engine: Any) -> None:
    right(make_engine)
    engine = make_engine(8, 4, 32)
    try:
        engine.add_request("first", 29, 2)
    except ValueError:
        return
    raise AssertionError("a prompt of 29 tokens was accepted")


solution.incident_test = incident_test


def __getattr__(name: str) -> Any:
    return getattr(solution, name)
