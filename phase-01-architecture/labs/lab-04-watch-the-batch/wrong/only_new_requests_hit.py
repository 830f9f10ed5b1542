"""Prefix hits are counted for new requests only, not for those that come back from a preemption.

A preempted request gives its blocks back, but they keep their hashes. When it returns it often finds most of
its own KV again, and computes that much less. The count of a resumed request is a hit as a new one's is.

Refused by `test_a_preemption_loses_what_was_computed`.
"""

from __future__ import annotations

from typing import Any

from course.learner.labs import load_solution

solution = load_solution(__file__)
right = solution.BatchProbe.observe


def observe(self: Any, record: Any) -> None:
    resumed = record.scheduler_output.scheduled_cached_reqs.resumed_req_ids
    before = {req_id: self.ledgers[req_id].num_cached for req_id in resumed}
    right(self, record)
    for req_id, num_cached in before.items():
        self.ledgers[req_id].num_cached = num_cached


solution.BatchProbe.observe = observe


def __getattr__(name: str) -> Any:
    return getattr(solution, name)
