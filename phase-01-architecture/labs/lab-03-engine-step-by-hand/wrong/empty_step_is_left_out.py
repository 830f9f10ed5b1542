"""A step without tokens is over once it is scheduled: no execute, no update.

There is nothing to compute, but the message has news all the same. It says who has finished, and a worker
that is not told remembers them for ever. Go through all stages; `execute_model` returns None and
`sample_tokens` an empty output.

Refused by `test_an_empty_step_has_news_all_the_same`.
"""

from __future__ import annotations

from typing import Any

from course.learner.labs import load_solution

solution = load_solution(__file__)


def step(self: Any) -> Any:
    self.process_aborts_queue()
    if not self.scheduler.has_unfinished_requests():
        return []
    scheduler_output = self.scheduler.schedule()
    if not scheduler_output.num_scheduled_tokens:
        return []
    executed = self.execute_model(scheduler_output)
    model_output = self.sample_tokens(executed)
    self.process_aborts_queue()
    core_outputs = self.scheduler.update_from_output(scheduler_output, model_output)
    processed = self.output_processor.process_outputs(core_outputs)
    self.scheduler.finish_requests(processed.reqs_to_abort, solution.RequestStatus.FINISHED_ABORTED)
    return processed.request_outputs


solution.HandEngine.step = step


def __getattr__(name: str) -> Any:
    return getattr(solution, name)
