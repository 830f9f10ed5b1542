"""Lab 01-06: two front doors over one core. Your work: `OutputCollector.put`, and `generate` and
`run_engine` of `AsyncEngine`.

You have the synchronous engine, `mini_vllm.engine.llm_engine.LLMEngine`. What you need of it:

    engine.add_request(request_id, prompt, params)   # queue; ValueError or TypeError if it is no good
    engine.step()                                    # one iteration: a list of RequestOutput
    engine.abort_request(request_id)                 # end and free; `abort_leavers`, given, calls it
    engine.has_unfinished_requests()

None of these may run while another of them is running: the engine has no locks. `step` takes long; the
others are quick.

You turn it into an engine that many asyncio tasks use at once, each reading a stream of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

from mini_vllm.engine.core import EngineDeadError
from mini_vllm.engine.input_processor import PromptType
from mini_vllm.engine.llm_engine import LLMEngine
from mini_vllm.outputs import RequestOutput
from mini_vllm.sampling_params import RequestOutputKind, SamplingParams  # noqa: F401


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
    """Between the engine and one reader: room for one output, into which later ones are merged.

    A queue would grow without end in front of a reader that has stopped reading. One merged output
    never holds more than the request's own text and tokens
    (`vllm/v1/engine/output_processor.py:45`).

    Attributes:
        output: what the reader has not taken yet; None if there is nothing.
        ready: set while there is something to take.
    """

    def __init__(self) -> None:
        self.output: RequestOutput | Exception | None = None
        self.ready = asyncio.Event()

    def put(self, output: RequestOutput | Exception) -> None:
        """Leave an output, or an error that ends the stream. Never waits.

        An output that meets one which was not taken is merged into it. An error takes the place of
        whatever is there. Called on the event loop only.
        """
        raise NotImplementedError

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
    """The asynchronous front door: `async for output in engine.generate(...)`, from many tasks at once.

    Use it as a context manager: `async with AsyncEngine(LLMEngine()) as engine:`. Inside, `run_engine`
    runs as a task of its own, and each `generate` in the task of its reader.

    Attributes:
        engine: the engine that does the work.
        engine_lock: every caller of the engine holds it. `run_engine` holds it for the length of a
            step, so a new request waits for the end of the step in flight. It is fair: the first to
            wait comes next.
        work: set while the engine may have something to do.
        collectors: request id to collector, of the requests that run and have a reader.
        leavers: ids of requests whose readers left before the end. No task may call the engine
            while it steps, and a reader that leaves should not wait: it writes its id here, and goes.
        error: None while all is well. Once set, nothing runs any more.
    """

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
        """Add a request and yield its new outputs until it has finished.

        1. Clone `params` (the caller's stay as they are) and set the clone's `output_kind` to DELTA.
        2. With the lock: raise `error` if there is one; `abort_leavers`, so that an id that was left is
           free; add the request to the engine; register a collector; set `work`.
        3. Yield what the collector has, until an output says `finished`.
        4. However this ends (the reader breaks off, its task is cancelled, `aclose` is called, or all
           went well): if the collector registered under `request_id` is still this one, the request
           has no reader. Take it out of `collectors` and note the id in `leavers`.

        Args:
            prompt: a string, token ids, or a dict, as `LLMEngine.add_request` takes it.
            params: what to sample and when to stop.
            request_id: unique among the living.

        Raises:
            TypeError, ValueError: the engine refused the request. Nothing else is touched: not even
                the stream that runs under the same id, where that was the reason.
            EngineDeadError: the engine died, or was closed.
        """
        if False:  # a yield somewhere makes this an async generator; yours will do
            yield
        raise NotImplementedError

    async def run_engine(self) -> None:
        """Step the engine while it has work, sleep while it has none, until it is closed or dies.

        While `error` is None: wait for `work`; then, with the lock, abort the leavers, run one step in
        a thread (`asyncio.to_thread`), deliver its outputs, and clear `work` if nothing is left to do.
        Closing sets `error` and `work` while this may be waiting: no step is taken then.

        A step that raises any Exception is the end: `die`. At the end, for whatever reason,
        `end_streams`. This coroutine itself raises nothing.
        """
        raise NotImplementedError

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
