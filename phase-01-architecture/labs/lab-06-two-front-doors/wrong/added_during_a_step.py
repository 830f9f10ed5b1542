"""A request is added as soon as it arrives, while the engine's thread is in the middle of a step.

A step that runs in a thread runs beside the event loop. The scheduler it walks through is changed under it:
a lost request, or a batch that does not match its blocks, once in a thousand. Hold the lock for every call,
`add_request` as much as `step`.

Refused by `test_nobody_calls_the_engine_during_a_step`.
"""

from __future__ import annotations

from typing import Any

from course.learner.labs import load_solution
from mini_vllm.sampling_params import RequestOutputKind, SamplingParams

solution = load_solution(__file__)


class AsyncEngine(solution.AsyncEngine):  # type: ignore[name-defined,misc]
    async def generate(self, prompt: Any, params: SamplingParams, request_id: str) -> Any:
        params = params.clone()
        params.output_kind = RequestOutputKind.DELTA
        collector = solution.OutputCollector()
        if self.error is not None:
            raise self.error
        self.engine.add_request(request_id, prompt, params)
        self.collectors[request_id] = collector
        self.work.set()
        try:
            finished = False
            while not finished:
                output = await collector.get()
                finished = output.finished
                yield output
        finally:
            if self.collectors.get(request_id) is collector:
                del self.collectors[request_id]
                self.leavers.append(request_id)


solution.AsyncEngine = AsyncEngine


def __getattr__(name: str) -> Any:
    return getattr(solution, name)
