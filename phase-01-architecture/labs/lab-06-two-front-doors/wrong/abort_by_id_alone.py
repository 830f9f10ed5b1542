"""Leaving `generate` aborts whatever runs under the request's id, its own request or another's.

A refused duplicate has the id of a living stream, and a finished request's id may have been taken again.
Abort only what this call has added: compare the collector that is registered under the id with your own.

Refused by `test_a_late_reader_does_not_end_its_successor`.
"""

from __future__ import annotations

import asyncio
from typing import Any

from course.learner.labs import load_solution
from mini_vllm.sampling_params import RequestOutputKind, SamplingParams

solution = load_solution(__file__)


class AsyncEngine(solution.AsyncEngine):  # type: ignore[name-defined,misc]
    async def generate(self, prompt: Any, params: SamplingParams, request_id: str) -> Any:
        params = params.clone()
        params.output_kind = RequestOutputKind.DELTA
        collector = solution.OutputCollector()
        try:
            async with self.engine_lock:
                if self.error is not None:
                    raise self.error
                self.abort_leavers()
                self.engine.add_request(request_id, prompt, params)
                self.collectors[request_id] = collector
                self.work.set()
            finished = False
            while not finished:
                output = await collector.get()
                finished = output.finished
                yield output
        finally:
            await asyncio.sleep(0)
            if self.collectors.pop(request_id, None) is not None:
                self.leavers.append(request_id)


solution.AsyncEngine = AsyncEngine


def __getattr__(name: str) -> Any:
    return getattr(solution, name)
