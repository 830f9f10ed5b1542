"""The probe calls it a decode if the request has an output and one token in the step, and asks nobody.

A request that comes back from a preemption reads its prompt and its outputs again. If the budget leaves
it a single token in the middle of that, it has an output and a count of one, and still it reads. What
decides is how many tokens it had computed before the step: ask `is_decode`.

Refused by `test_who_comes_back_reads`.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from course.learner.labs import load_solution

solution = load_solution(__file__)
right = solution.BatchProbe.observe


def observe(self: Any, record: Any) -> None:
    sampled = {r for r, ledger in self.ledgers.items() if ledger.num_sampled}
    sampled -= {new.req_id for new in record.scheduler_output.scheduled_new_reqs}
    right(self, record)
    step = self.steps[-1]
    decodes = tuple(r for r, n in step.num_scheduled_tokens.items() if n == 1 and r in sampled)
    prefills = tuple(r for r in step.num_scheduled_tokens if r not in decodes)
    self.steps[-1] = dataclasses.replace(step, prefills=prefills, decodes=decodes)


solution.BatchProbe.observe = observe


def __getattr__(name: str) -> Any:
    return getattr(solution, name)
