"""Whoever leaves notes its id for the abort, and leaves its collector where it is.

The request is ended, so no output comes and nothing seems wrong. But the table keeps an entry, and an
output in it, for everybody who ever hung up: a leak that a server notices after a week. Take the collector
out before you go.

Refused by `test_nobody_who_left_is_still_listed`.
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
        async with self.engine_lock:
            if self.error is not None:
                raise self.error
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
                self.leavers.append(request_id)


solution.AsyncEngine = AsyncEngine


def __getattr__(name: str) -> Any:
    return getattr(solution, name)
