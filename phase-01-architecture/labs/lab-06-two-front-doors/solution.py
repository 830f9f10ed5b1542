"""Lab 01-06: two front doors over one core. The reference solution.

`AsyncEngine` streams what `LLMEngine` computes, to many readers at once. It is the small sibling of
`vllm/v1/engine/async_llm.py`; the collector is that of `vllm/v1/engine/output_processor.py:45`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

from mini_vllm.engine.core import EngineDeadError
from mini_vllm.engine.input_processor import PromptType
from mini_vllm.engine.llm_engine import LLMEngine
from mini_vllm.outputs import RequestOutput
from mini_vllm.sampling_params import RequestOutputKind, SamplingParams


def merge(output: RequestOutput, newer: RequestOutput) -> None:
    """Given: add the deltas of `newer` to those of `output`, so that one output says what both said.

    A request with `n` completions has a `CompletionOutput` for each that has news; those with the same
    `index` belong together. Text, tokens and logprobs are joined; the rest is the newer's.

    Args:
        output: changed in place. It is the front end's own, no reader has it.
        newer: the same request's next output.

    Source: `vllm/outputs.py:145`.
    """
    output.finished = newer.finished
    mine = {completion.index: completion for completion in output.outputs}
    for new in newer.outputs:
        old = mine.get(new.index)
        if old is None:
            output.outputs.append(new)
            continue
        old.text += new.text
        old.token_ids.extend(new.token_ids)
        if old.logprobs is not None:
            old.logprobs.extend(new.logprobs or [])
        old.cumulative_logprob = new.cumulative_logprob
        old.finish_reason = new.finish_reason
        old.stop_reason = new.stop_reason


class OutputCollector:
    """Between the engine and one reader: room for one output, into which later ones are merged."""

    def __init__(self) -> None:
        self.output: RequestOutput | Exception | None = None
        self.ready = asyncio.Event()

    def put(self, output: RequestOutput | Exception) -> None:
        """Leave an output, or an error that ends the stream. Never waits."""
        if isinstance(self.output, RequestOutput) and isinstance(output, RequestOutput):
            merge(self.output, output)
        else:
            self.output = output
        self.ready.set()

    # -- given ------------------------------------------------------------------------------------

    async def get(self) -> RequestOutput:
        """Take what is there; wait if nothing is. Raises the error, if it is one that was left."""
        await self.ready.wait()
        self.ready.clear()
        output, self.output = self.output, None
        if isinstance(output, Exception):
            raise output
        assert output is not None
        return output


class AsyncEngine:
    """The asynchronous front door: `async for output in engine.generate(...)`, from many tasks at once."""

    def __init__(self, engine: LLMEngine) -> None:
        self.engine = engine
        self.engine_lock = asyncio.Lock()
        self.work = asyncio.Event()
        self.collectors: dict[str, OutputCollector] = {}
        self.leavers: list[str] = []
        self.error: EngineDeadError | None = None

    async def generate(
        self, prompt: PromptType, params: SamplingParams, request_id: str
    ) -> AsyncGenerator[RequestOutput, None]:
        """Add a request and yield its new outputs until it has finished."""
        params = params.clone()
        params.output_kind = RequestOutputKind.DELTA
        collector = OutputCollector()
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
            # By object: a request of the same id may have been refused, or have come after ours.
            if self.collectors.get(request_id) is collector:
                del self.collectors[request_id]
                self.leavers.append(request_id)

    async def run_engine(self) -> None:
        """Step the engine while it has work, sleep while it has none, until it is closed or dies."""
        try:
            while self.error is None:
                await self.work.wait()
                async with self.engine_lock:
                    if self.error is not None:
                        break  # it was closing that set `work`
                    self.abort_leavers()
                    self.deliver(await asyncio.to_thread(self.engine.step))
                    if not self.engine.has_unfinished_requests():
                        self.work.clear()
        except Exception as cause:
            self.die(cause)
        self.end_streams()

    # -- given ------------------------------------------------------------------------------------

    def abort_leavers(self) -> None:
        """Abort the requests whose readers have left, and empty the list. Only with the lock."""
        for request_id in self.leavers:
            # It may have finished in the very step during which its reader left.
            if self.engine.output_processor.has_request(request_id):
                self.engine.abort_request(request_id)
        self.leavers.clear()

    def deliver(self, outputs: list[RequestOutput]) -> None:
        """Put each output into its request's collector, unless its reader left during the step.

        With the last output of a request its collector leaves `collectors`: from here on there is
        nothing to abort, and the id may be used again, whether or not the reader has read to the end.
        """
        for output in outputs:
            collector = self.collectors.get(output.request_id)
            if collector is None:
                continue
            if output.finished:
                del self.collectors[output.request_id]
            collector.put(output)

    def die(self, cause: Exception) -> None:
        """A step raised: the engine's state is no longer sound. Keep the error for later callers."""
        self.error = EngineDeadError(f"the engine died: {cause!r}")
        self.error.__cause__ = cause

    def end_streams(self) -> None:
        """End every stream that is still open, with `error`."""
        assert self.error is not None
        for collector in self.collectors.values():
            collector.put(self.error)

    async def __aenter__(self) -> AsyncEngine:
        self._task = asyncio.create_task(self.run_engine())
        return self

    async def __aexit__(self, *error: object) -> None:
        """Let the step in flight end, then take no more. Streams that are open end with EngineDeadError."""
        if self.error is None:
            self.error = EngineDeadError("the engine was closed")
        self.work.set()
        await self._task
