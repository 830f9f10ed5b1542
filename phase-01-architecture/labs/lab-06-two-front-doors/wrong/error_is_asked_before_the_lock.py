"""`error` is looked at before the lock is taken, and not again when it is held.

Between the two lies a whole step, and the step may kill the engine. The request is then added to an engine
that nobody steps any more, and its reader waits for ever. What you asked before an `await` is old after it:
ask with the lock.

Refused by `test_a_newcomer_at_a_dying_engine_is_refused`.
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
        async with self.engine_lock:
            self.abort_leavers()
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
