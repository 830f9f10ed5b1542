"""`is_decode` is asked with the count of before the step's last token, not of before the step.

For a step of one token the two are the same, so every run without a preemption looks right. A request that
comes back and computes 18 tokens at once ends where a decode ends, and is taken for one. Ask with the
count from before the step, as the record has it.

Refused by `test_who_comes_back_reads`.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from course.learner.labs import load_solution

solution = load_solution(__file__)
right = solution.BatchProbe.observe


def observe(self: Any, record: Any) -> None:
    output = record.scheduler_output
    before = {new.req_id: new.num_computed_tokens for new in output.scheduled_new_reqs}
    cached = output.scheduled_cached_reqs
    before |= zip(cached.req_ids, cached.num_computed_tokens, strict=True)
    old = {r: dataclasses.replace(ledger) for r, ledger in self.ledgers.items()}
    old |= {
        r.req_id: solution.RequestLedger(len(r.prompt_token_ids)) for r in output.scheduled_new_reqs
    }
    right(self, record)
    step = self.steps[-1]
    decodes = tuple(
        r
        for r, n in step.num_scheduled_tokens.items()
        if solution.is_decode(old[r], before[r] + n - 1)
    )
    prefills = tuple(r for r in step.num_scheduled_tokens if r not in decodes)
    self.steps[-1] = dataclasses.replace(step, prefills=prefills, decodes=decodes)


solution.BatchProbe.observe = observe


def __getattr__(name: str) -> Any:
    return getattr(solution, name)
