"""The counts are those of after the step, as the scheduler's own requests show them to an observer.

`schedule()` moves num_computed_tokens before it returns, so whoever reads it later sees the step's tokens
in it already. A prompt that is computed in one step then looks like one that came from the cache. Take the
counts from the record: scheduler_output has them as they were before.

Refused by `test_prefills_and_decodes_are_told_apart`.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from course.learner.labs import load_solution

solution = load_solution(__file__)
right = solution.BatchProbe.observe


def observe(self: Any, record: Any) -> None:
    output = record.scheduler_output
    tokens, cached = output.num_scheduled_tokens, output.scheduled_cached_reqs
    after = [
        n + tokens[req_id]
        for req_id, n in zip(cached.req_ids, cached.num_computed_tokens, strict=True)
    ]
    new = [
        dataclasses.replace(r, num_computed_tokens=r.num_computed_tokens + tokens[r.req_id])
        for r in output.scheduled_new_reqs
    ]
    moved = dataclasses.replace(
        output,
        scheduled_new_reqs=new,
        scheduled_cached_reqs=dataclasses.replace(cached, num_computed_tokens=after),
    )
    right(self, dataclasses.replace(record, scheduler_output=moved))


solution.BatchProbe.observe = observe


def __getattr__(name: str) -> Any:
    return getattr(solution, name)
