"""`reqs_to_abort` is ignored: a request whose text reached a stop string runs on in the core.

The client has its answer, so nobody notices but the bill: the request goes on to its `max_tokens`, with
its blocks and a place in every batch. Stop strings are text, and the core knows token ids only; whoever
finds one has to tell the scheduler (`finish_requests`).

Refused by `test_a_stop_string_ends_the_request_in_the_core`.
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
    self.process_aborts_queue()
    core_outputs = self.scheduler.update_from_output(scheduler_output, model_output)
    return self.output_processor.process_outputs(core_outputs).request_outputs


solution.HandEngine.step = step


def __getattr__(name: str) -> Any:
    return getattr(solution, name)
