"""A request that is admitted is taken to have computed nothing, prefix hits or not.

The counter of a new or resumed request starts at what the prefix cache brought, which is the
`num_computed_tokens` of its record. Without that it stays behind for the rest of its life, and the
engine seems to have scheduled too little. Two engines read wrongly still look alike: hold one against
a photograph.

Refused by `test_the_events_are_those_of_lab_01`.
"""

from __future__ import annotations

from typing import Any

from course.learner.labs import load_solution

solution = load_solution(__file__)


def to_events(records: Any) -> Any:
    changed = []
    for record in records:
        if record["call"] == "schedule":
            new = [dict(entry, num_computed_tokens=0) for entry in record["new"]]
            cached = [
                dict(entry, num_computed_tokens=0) if entry["resumed"] else entry
                for entry in record["cached"]
            ]
            record = dict(record, new=new, cached=cached)
        changed.append(record)
    return solution.to_events(changed)


def __getattr__(name: str) -> Any:
    return getattr(solution, name)
