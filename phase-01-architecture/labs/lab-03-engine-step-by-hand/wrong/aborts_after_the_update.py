"""Aborts are processed when the step is over, after `update_from_output`.

A client that goes while the model runs then still has a token appended to its request, and an output
made for nobody. Look into the queue twice: before `schedule`, so that no pass is spent on those who
went between steps, and between sampling and the update, which skips requests that are gone.

Refused by `test_the_stages_come_in_order`.
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
    model_output = self.sample_tokens(self.execute_model(scheduler_output))
    core_outputs = self.scheduler.update_from_output(scheduler_output, model_output)
    self.process_aborts_queue()
    processed = self.output_processor.process_outputs(core_outputs)
    self.scheduler.finish_requests(processed.reqs_to_abort, solution.RequestStatus.FINISHED_ABORTED)
    return processed.request_outputs


solution.HandEngine.step = step


def __getattr__(name: str) -> Any:
    return getattr(solution, name)
