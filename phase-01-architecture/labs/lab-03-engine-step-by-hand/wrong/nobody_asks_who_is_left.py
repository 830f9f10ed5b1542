"""Nobody asks whether anybody is left: every call of `step` schedules.

The scheduler plans an empty step, so nothing crashes, and an idle engine goes through all stages for
nobody. After the aborts are heard, ask `has_unfinished_requests()`, and return an empty list where it
says no.

Refused by `test_an_idle_engine_returns_at_once`.
"""

from __future__ import annotations

from typing import Any

from course.learner.labs import load_solution

solution = load_solution(__file__)


def step(self: Any) -> Any:
    self.process_aborts_queue()
    scheduler_output = self.scheduler.schedule()
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
