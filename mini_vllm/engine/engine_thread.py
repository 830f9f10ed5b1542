"""The engine's own thread: commands in, outputs out, and the slot where they wait for the consumer.

Mirrors the loop of `vllm/v1/engine/core.py:1193 EngineCoreProc.run_busy_loop`, which upstream runs in
a process of its own, and `vllm/v1/engine/output_processor.py:45 RequestOutputCollector`. What takes the
place of sockets between the processes is a list of commands one way and one slot a request the other
way.

Left out: utility calls, pausing.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

from mini_vllm.core.request import EngineCoreRequest
from mini_vllm.engine.core import EngineDeadError
from mini_vllm.engine.llm_engine import LLMEngine
from mini_vllm.engine.step_record import StepRecord
from mini_vllm.outputs import RequestOutput
from mini_vllm.sampling_params import RequestOutputKind

logger = logging.getLogger("mini_vllm.engine")
_LONGEST_CAUSE = 200  # characters of the exception that a step died of, as every client reads it


class EngineShutdownError(EngineDeadError):
    """The engine was shut down, or is draining and takes no new requests. Nothing is wrong with it."""


@dataclass(frozen=True, slots=True)
class EngineStats:
    """The engine's numbers after one step; an object never changes, so they belong together.

    What `mini_vllm/metrics/stats.py` counts a step, summed up where it is a count.

    Attributes:
        num_steps: steps since start.
        num_running_reqs: requests that run; a request with `n > 1` counts `n` times.
        num_waiting_reqs: requests that wait, preempted ones among them.
        kv_cache_usage: share of usable KV blocks that are held, 0.0 to 1.0.
        num_preemptions: since start.
        prefix_cache_queries: tokens looked up in the prefix cache, since start, at each attempt to
            admit a request that was never preempted.
        prefix_cache_hits: those of them that were found.
    """

    num_steps: int = 0
    num_running_reqs: int = 0
    num_waiting_reqs: int = 0
    kv_cache_usage: float = 0.0
    num_preemptions: int = 0
    prefix_cache_queries: int = 0
    prefix_cache_hits: int = 0


def merge_output(output: RequestOutput, later: RequestOutput, aggregate: bool) -> None:
    """Take `later` up into `output`, completion by completion.

    With `aggregate` both are deltas, and are joined; without, the later completion replaces the
    earlier. Completions of different index (`n > 1`) stand side by side.
    Source: `vllm/outputs.py:145 RequestOutput.add`.
    """
    output.finished |= later.finished
    for new in later.outputs:
        for place, old in enumerate(output.outputs):
            if old.index != new.index:
                continue
            if aggregate:
                old.text += new.text
                old.token_ids.extend(new.token_ids)
                if new.logprobs and old.logprobs is not None:
                    old.logprobs.extend(new.logprobs)
                old.cumulative_logprob = new.cumulative_logprob
                old.finish_reason, old.stop_reason = new.finish_reason, new.stop_reason
            else:
                output.outputs[place] = new
            break
        else:
            output.outputs.append(new)


class RequestOutputCollector:
    """The slot between the engine thread, which puts, and one consumer, which takes.

    Source: `vllm/v1/engine/output_processor.py:45 RequestOutputCollector`. Upstream both sides run
    on the event loop; here a lock guards the slot.
    """

    def __init__(self, request_id: str, output_kind: RequestOutputKind) -> None:
        self.request_id = request_id
        self.aggregate = output_kind is RequestOutputKind.DELTA
        self.started = False  # an output was put. This and the next: the engine thread's
        self.done = False  # nothing more will be put
        self._output: RequestOutput | Exception | None = None
        self._lock = threading.Lock()
        self._ready = asyncio.Event()

    def put(self, output: RequestOutput | Exception) -> bool:
        """Leave or merge an output; an exception takes the place of whatever lies there.

        Returns whether the slot was empty. The consumer is woken by `wake`, in the loop's thread.
        """
        with self._lock:
            before = self._output
            if isinstance(before, RequestOutput) and isinstance(output, RequestOutput):
                merge_output(before, output, self.aggregate)
            else:
                self._output = output
        return before is None

    def get_nowait(self) -> RequestOutput | None:
        """Empty the slot; None if it was. Raises the exception that was put."""
        with self._lock:
            output, self._output = self._output, None
        if isinstance(output, Exception):
            raise output
        return output

    async def get(self) -> RequestOutput:
        """Wait for an output and take it. Raises the exception that was put."""
        while (output := self.get_nowait()) is None:
            # No wake can be lost here: `wake` runs in this thread, and so after the wait began.
            self._ready.clear()
            await self._ready.wait()
        return output

    def wake(self) -> None:
        self._ready.set()


class EngineThread:
    """The thread that steps an engine, and everything that only it may touch.

    It sleeps while there is nothing to do. Commands run between two steps, in the order sent.

    Args:
        engine: an engine that nothing else drives.
        max_loop_share: see `AsyncLLM`.

    Attributes:
        loop: the event loop of the consumers; to be set before the first command is sent.
        stats: the engine's numbers after the last step or command.
        ended: no step will follow, and no stream is open.
        cause: the exception that ended it; None where `stop` did.
        busy_since: `time.monotonic()` when the step under way began; None while it sleeps.
    """

    def __init__(self, engine: LLMEngine, max_loop_share: float) -> None:
        self.engine = engine
        self.loop: asyncio.AbstractEventLoop | None = None
        self.stats = EngineStats()
        self.ended = False
        self.cause: BaseException | None = None
        self.busy_since: float | None = None
        # Shared, under the lock of `_wakeup`.
        self._wakeup = threading.Condition()
        self._commands: list[Callable[[], object]] = []
        self._stopping = False
        # Written by the event loop's thread.
        self._max_loop_share = max_loop_share
        self._wakes_done = 0
        self._next_wake = 0.0
        # The engine thread's own.
        self._streams: dict[str, RequestOutputCollector] = {}
        self._urgent: list[RequestOutputCollector] = []  # to be woken at once
        self._patient: dict[RequestOutputCollector, None] = {}  # when the loop has time
        self._wakes_sent = 0
        self._drained: list[asyncio.Future[None]] = []
        self._prefix_cache_queries = self._prefix_cache_hits = 0
        engine.engine_core.step_observers.append(self._count_prefix_hits)
        engine.engine_core.failure_observers.append(self._wake_up)
        self._thread = threading.Thread(target=self._run, name="mini-vllm-engine", daemon=True)
        self._thread.start()

    # -- called from other threads ----------------------------------------------------------------

    def send(self, command: Callable[[], object]) -> bool:
        """Leave a command to run before the next step; False if none is taken any more."""
        with self._wakeup:
            if self._stopping or self.ended:
                return False
            self._commands.append(command)
            self._wakeup.notify()
        self.engine.core_client.interrupt()
        return True

    def stop(self, timeout: float | None = None) -> None:
        """End after the step under way, and wait until it has: for `timeout` seconds, or for good."""
        with self._wakeup:
            self._stopping = True
            self._wakeup.notify()
        self.engine.core_client.interrupt()
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout)

    def error(self) -> EngineDeadError:
        """Why it takes no commands: one line. A new object each time, since every stream raises its
        own."""
        if self.cause is None:
            return EngineShutdownError("the engine was shut down")
        cause = " ".join(repr(self.cause).split())[:_LONGEST_CAUSE]
        error = EngineDeadError(f"the engine died in a step: {cause}")
        error.__cause__ = self.cause
        return error

    def _wake_up(self) -> None:
        with self._wakeup:
            self._wakeup.notify()

    # -- commands ---------------------------------------------------------------------------------

    def add(self, collector: RequestOutputCollector, core_request: EngineCoreRequest) -> None:
        if self.ended:
            self._put(collector, self.error())
            return
        try:
            self.engine.add_core_request(core_request)
        except (TypeError, ValueError) as error:
            self._put(collector, error)
        else:
            self._streams[collector.request_id] = collector

    def leave(self, collector: RequestOutputCollector) -> None:
        """The consumer has gone. By object: its id may be free by now, and taken again."""
        if self._streams.get(collector.request_id) is collector:
            self._close(collector)
            if not self.ended:
                self.engine.abort_request(collector.request_id)

    def abort(self, request_ids: Iterable[str]) -> None:
        """End requests with a last output; ids that are not known are passed over
        (`vllm/v1/engine/output_processor.py:450 OutputProcessor.abort_requests`)."""
        processor = self.engine.output_processor
        for request_id in request_ids:
            collector = self._streams.get(request_id)
            if collector is None or self.ended:
                continue
            parent = processor.parent_requests.get(request_id)
            ids = [request_id] if parent is None else sorted(parent.child_requests)
            states = [processor.request_states[child_id] for child_id in ids]
            self.engine.abort_request(request_id)
            for state in states:
                last = state.make_request_output([], "abort", None)
                if last is not None:
                    self._put(collector, last)

    def drain(self, drained: asyncio.Future[None]) -> None:
        """Resolve `drained` once no request is left."""
        self._drained.append(drained)

    # -- the loop ---------------------------------------------------------------------------------

    def _run(self) -> None:
        cause = None
        try:
            while self._turn():
                pass
        except BaseException as error:
            cause = error
            # Here and nowhere else: the streams that end with it may be thousands.
            # As `vllm/v1/engine/core.py:1167 in EngineCoreProc.run_engine_core`.
            logger.error("the engine died in a step", exc_info=error)
        self._end(cause)
        self.engine.engine_core.shutdown()
        self.busy_since = None

    def _turn(self) -> bool:
        """Wait for work; then the commands, then a step. False if it is to end.
        Source: `vllm/v1/engine/core.py:1193 EngineCoreProc.run_busy_loop`."""
        engine = self.engine
        with self._wakeup:
            core = engine.engine_core
            while not (self._stopping or self._commands or engine.has_unfinished_requests()):
                if core.error is not None:
                    raise core.error  # of a worker that ended while nothing was asked of it
                self.busy_since = None
                self._wakeup.wait()
            if self._stopping:
                return False
            commands, self._commands = self._commands, []
        self.busy_since = time.monotonic()
        for command in commands:
            command()
        self._flush()  # a refused request need not wait for the step
        for output in engine.step():
            collector = self._streams.get(output.request_id)
            if collector is not None:
                self._put(collector, output)
        self._take_stats()
        self._flush()
        if self._drained and not engine.has_unfinished_requests():
            self._release_drained()
        return True

    def _end(self, cause: BaseException | None) -> None:
        """Let nothing wait for a thread that has gone."""
        with self._wakeup:
            self.cause, self.ended = cause, True
            commands, self._commands = self._commands, []
        for command in commands:
            command()
        for collector in list(self._streams.values()):
            if cause is None:  # an engine that died is left as it is, to be looked at
                self.engine.abort_request(collector.request_id)
            self._put(collector, self.error())
        if cause is None:
            self._take_stats()
        self._flush()
        self._release_drained()

    # -- outputs ----------------------------------------------------------------------------------

    def _put(self, collector: RequestOutputCollector, output: RequestOutput | Exception) -> None:
        was_empty = collector.put(output)
        if isinstance(output, Exception) or output.finished:
            self._close(collector)
            self._urgent.append(collector)
        elif not collector.started:
            collector.started = True
            self._urgent.append(collector)
        elif was_empty:
            self._patient[collector] = None

    def _close(self, collector: RequestOutputCollector) -> None:
        collector.done = True
        self._patient.pop(collector, None)
        if self._streams.get(collector.request_id) is collector:
            del self._streams[collector.request_id]

    def _flush(self) -> None:
        """Wake the loop for all that have news, at most once."""
        wake, self._urgent = self._urgent, []
        idle = self._wakes_done == self._wakes_sent and time.perf_counter() >= self._next_wake
        if self._patient and idle:
            wake.extend(self._patient)
            self._patient.clear()
        if wake and self._call_loop(partial(self._wake, wake)):
            self._wakes_sent += 1

    def _wake(self, collectors: list[RequestOutputCollector]) -> None:
        """On the event loop: make the consumers ready, and see what they cost."""
        start = time.thread_time()
        for collector in collectors:
            collector.wake()
        asyncio.get_running_loop().call_soon(self._woken, start)  # after them, in the same queue

    def _woken(self, start: float) -> None:
        pause = (time.thread_time() - start) / self._max_loop_share
        self._next_wake = max(self._next_wake, time.perf_counter() + pause)
        self._wakes_done += 1

    def _release_drained(self) -> None:
        drained, self._drained = self._drained, []

        def release() -> None:
            for future in drained:
                if not future.done():
                    future.set_result(None)

        if drained:
            self._call_loop(release)

    def _call_loop(self, callback: Callable[[], object]) -> bool:
        assert self.loop is not None, "a command came before the loop was known"
        try:
            self.loop.call_soon_threadsafe(callback)
        except RuntimeError:  # the loop is closed: no consumer is left
            for collector in list(self._streams.values()):
                self.leave(collector)
            return False
        return True

    # -- numbers ----------------------------------------------------------------------------------

    def _count_prefix_hits(self, record: StepRecord) -> None:
        stats = record.scheduler_stats.prefix_cache_stats
        self._prefix_cache_queries += stats.queries
        self._prefix_cache_hits += stats.hits

    def _take_stats(self) -> None:
        core = self.engine.engine_core
        self.stats = EngineStats(
            core.num_steps,
            len(core.scheduler.running),
            core.scheduler.get_num_waiting_requests(),
            core.kv_cache_manager.usage,
            core.scheduler.num_preemptions,
            self._prefix_cache_queries,
            self._prefix_cache_hits,
        )
