"""The async front door: many streams over one engine, which steps in a thread of its own.

Mirrors `vllm/v1/engine/async_llm.py:70 AsyncLLM`. Upstream the core is another process behind a
socket; here it is a thread (`engine_thread.py`). Three rules keep that sound:

* Only the engine thread touches the engine. All other code leaves a command, and commands run
  between two steps. So a request never comes or goes in the middle of one.
* Between engine and consumer lies one slot a request, not a queue. An output that finds the slot
  full is merged into what lies there: a slow consumer costs no more memory than its own output.
* The event loop is woken once a step, and less often when it is short of time (`max_loop_share`).
  Both threads share the interpreter lock: what the loop spends on its streams, the engine waits for.

Left out: pooling, streaming input, pause and resume, sleep, profiling.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar

from mini_vllm.config.engine import DEFAULT_MODEL, EngineConfig
from mini_vllm.core.request import EngineCoreRequest
from mini_vllm.engine.arg_utils import EngineArgs
from mini_vllm.engine.core import EngineDeadError
from mini_vllm.engine.engine_thread import (
    EngineShutdownError,
    EngineStats,
    EngineThread,
    RequestOutputCollector,
)
from mini_vllm.engine.input_processor import PromptType
from mini_vllm.engine.llm_engine import LLMEngine
from mini_vllm.engine.parts import DEFAULT_PARTS, EngineParts
from mini_vllm.engine.step_record import StepRecord
from mini_vllm.outputs import RequestOutput
from mini_vllm.sampling_params import SamplingParams
from mini_vllm.tokenizer import Tokenizer
from mini_vllm.utils.surface import missing_attribute, reject_unsupported

__all__ = ["AsyncLLM", "EngineDeadError", "EngineShutdownError", "EngineStats"]

if TYPE_CHECKING:
    from mini_vllm.lora.request import LoRARequest

T = TypeVar("T")


class AsyncLLM:
    """An engine for many concurrent streams (`vllm/v1/engine/async_llm.py:70 AsyncLLM`).

    Its thread starts here and sleeps while there is nothing to do; `shutdown` ends it. All
    coroutines must run on one event loop, that of the first call. A second loop gets a RuntimeError.

    Args:
        engine: an engine that nothing else drives. None: one made of `model`, `config` and `parts`.
        model: a checkpoint folder; default: the shipped one.
        config: the engine's settings.
        parts: the engine's parts.
        stats: called with each step's record, in the engine thread, where it can read the engine
            in peace. If it raises, the engine dies.
        max_loop_share: the share of time, above 0 and at most 1, that the event loop may spend on
            passing on what it is woken for. Where it needs more, streams are woken less often and
            get longer deltas. First and last outputs of a request never wait. Upstream has
            `EngineConfig.stream_interval`, a fixed number of tokens, instead.

    Attributes:
        engine: the engine. Nothing else may touch it before `shutdown` has returned.

    Raises ValueError where model, config or `max_loop_share` is not usable.
    """

    def __init__(
        self,
        engine: LLMEngine | None = None,
        *,
        model: str | Path = DEFAULT_MODEL,
        config: EngineConfig | None = None,
        parts: EngineParts = DEFAULT_PARTS,
        stats: Callable[[StepRecord], None] | None = None,
        max_loop_share: float = 0.03,
    ) -> None:
        if not 0 < max_loop_share <= 1:
            raise ValueError(f"max_loop_share must be above 0 and at most 1, got {max_loop_share}")
        self.engine = engine if engine is not None else LLMEngine(model, config, parts=parts)
        if stats is not None:
            self.engine.engine_core.step_observers.append(stats)
        self._draining = False
        self._thread = EngineThread(self.engine, max_loop_share)

    @classmethod
    def from_engine_args(cls, engine_args: EngineArgs, **kwargs: Any) -> Self:
        """An engine from vLLM's form of the settings
        (`vllm/v1/engine/async_llm.py:232 AsyncLLM.from_engine_args`).

        `kwargs` are the constructor's others, such as `stats`.
        """
        return cls(LLMEngine.from_engine_args(engine_args), **kwargs)

    @property
    def tokenizer(self) -> Tokenizer | None:
        return self.engine.tokenizer

    def get_tokenizer(self) -> Tokenizer | None:
        return self.engine.tokenizer

    async def generate(
        self,
        prompt: EngineCoreRequest | PromptType,
        sampling_params: SamplingParams,
        request_id: str,
        *,
        priority: int = 0,
        lora_request: LoRARequest | None = None,
        **unused: Any,
    ) -> AsyncGenerator[RequestOutput, None]:
        """Run one request and yield its outputs; `output_kind` says what they carry.

        Args:
            prompt: a prompt, or what `InputProcessor.process_inputs` has made of one beforehand, for the
                same id; its parameters, priority and checks then stand.
            lora_request: its adapter, which is read now if it is not in memory.
            unused: vLLM's other arguments (`trace_headers`, …), None each.

        Leaving the generator (cancellation, `break`, `aclose`) aborts the request, and its blocks
        are free before the next step.

        Raises TypeError or ValueError for a prompt, parameter or id that is not valid, or an id in
        use, before anything is computed; EngineShutdownError if the engine drains or was shut
        down; EngineDeadError if a step failed; RuntimeError on another event loop than the first.
        Source: `vllm/v1/engine/async_llm.py:524 AsyncLLM.generate`.
        """
        known = ("lora_request", "priority")
        reject_unsupported("generate", unused, "AsyncLLM.generate", known)
        collector = self._start(prompt, sampling_params, request_id, priority, lora_request)
        try:
            finished = False
            while not finished:
                output = collector.get_nowait() or await collector.get()
                finished = output.finished
                yield output
        finally:
            if not collector.done:
                self._thread.send(partial(self._thread.leave, collector))

    def _start(
        self,
        prompt: EngineCoreRequest | PromptType,
        params: SamplingParams,
        request_id: str,
        priority: int,
        lora_request: LoRARequest | None,
    ) -> RequestOutputCollector:
        """Check and tokenize here, while others compute; the engine's thread gets the result
        (`vllm/v1/engine/async_llm.py:280 AsyncLLM.add_request`)."""
        self._bind_loop()
        if self._draining and self.is_running:
            raise EngineShutdownError("the engine is draining: it takes no new requests")
        if isinstance(prompt, EngineCoreRequest):
            core_request = prompt
        else:
            core_request = self.engine.input_processor.process_inputs(
                request_id, prompt, params, priority=priority, lora_request=lora_request
            )
        collector = RequestOutputCollector(request_id, core_request.sampling_params.output_kind)
        if not self._thread.send(partial(self._thread.add, collector, core_request)):
            raise self.dead_error
        return collector

    async def abort(self, request_id: str | Iterable[str]) -> None:
        """End requests before the next step; each stream gets a last output that says `abort`.

        Ids that are not known are passed over: the request may just have finished.
        Source: `vllm/v1/engine/async_llm.py:709 AsyncLLM.abort`.
        """
        self._bind_loop()
        ids = [request_id] if isinstance(request_id, str) else list(request_id)
        for one in ids:
            if not isinstance(one, str):
                raise TypeError(f"request ids must be strings, got {one!r}")
        self._thread.send(partial(self._thread.abort, ids))

    async def reset_prefix_cache(
        self, reset_running_requests: bool = False, reset_connector: bool = False
    ) -> bool:
        """Forget all cached prefixes, between two steps; False while requests hold blocks, unless
        those are reset too.

        Raises EngineDeadError if the engine takes no commands any more.
        Source: `vllm/v1/engine/async_llm.py:921 AsyncLLM.reset_prefix_cache`.
        """
        return await self._ask(
            partial(self.engine.reset_prefix_cache, reset_running_requests, reset_connector)
        )

    async def add_lora(self, lora_request: LoRARequest) -> bool:
        """Read an adapter, in a thread of its own while steps go on, and bring it into a slot between two
        steps. True, as upstream, where the core reads it and no step runs meanwhile.

        Raises TypeError or ValueError for one that is not usable, EngineDeadError if the engine takes no
        commands any more.
        Source: `vllm/v1/engine/async_llm.py:948 AsyncLLM.add_lora`.
        """
        loop = self._bind_loop()
        load = self.engine.input_processor.load_lora
        loaded = await loop.run_in_executor(None, load, lora_request)
        await self._ask(partial(self.engine.core_client.add_lora, loaded))
        return True

    async def list_loras(self) -> set[int]:
        """The ids of the adapters in memory (`vllm/v1/engine/async_llm.py:956 AsyncLLM.list_loras`)."""
        return await self._ask(self.engine.list_loras)

    def add_lora_soon(self, lora_request: LoRARequest) -> None:
        """The same before any loop runs: read now, in a slot before the first step. Not in vLLM."""
        loaded = self.engine.input_processor.load_lora(lora_request)
        self._thread.send(partial(self.engine.core_client.add_lora, loaded))

    async def _ask(self, call: Callable[[], T]) -> T:
        """What `call` gives, made by the engine's thread between two steps."""
        loop = self._bind_loop()
        told: asyncio.Future[T] = loop.create_future()

        def tell(result: T) -> None:
            if not told.done():
                told.set_result(result)

        def run() -> None:
            loop.call_soon_threadsafe(tell, call())

        if not self._thread.send(run):
            raise self.dead_error
        return await told

    async def check_health(self) -> None:
        """Raises EngineDeadError if the engine has died, EngineShutdownError if it was shut down."""
        if self.errored:
            raise self.dead_error

    @property
    def step_seconds(self) -> float:
        """How long the engine's thread has been at the step under way; 0.0 while it waits for work.

        A step that hangs raises nothing. The caller sets the limit.
        """
        since = self._thread.busy_since
        return 0.0 if since is None else time.monotonic() - since

    async def drain(self) -> None:
        """Refuse new requests and wait until no request is left, for whatever reason.

        Last outputs may then still be unread. If this is cancelled, new requests stay refused.
        """
        drained = self._bind_loop().create_future()
        self._draining = True
        if self._thread.send(partial(self._thread.drain, drained)):
            await drained

    def shutdown(self, timeout: float | None = None) -> None:
        """End the thread after the step under way. Streams still open end with EngineShutdownError.

        May be called from any thread and any number of times.

        Args:
            timeout: seconds to wait for the thread; None: until it has ended.
        """
        self._thread.stop(timeout)

    @property
    def stats(self) -> EngineStats:
        """The numbers after the last step, from any thread."""
        return self._thread.stats

    @property
    def is_running(self) -> bool:
        return not self._thread.ended

    @property
    def errored(self) -> bool:
        """Whether the engine has died or was shut down."""
        return self._thread.ended

    @property
    def dead_error(self) -> EngineDeadError:
        """The error that streams get, once `errored`."""
        return self._thread.error()

    def _bind_loop(self) -> asyncio.AbstractEventLoop:
        loop = asyncio.get_running_loop()
        if self._thread.loop is None:
            self._thread.loop = loop
        elif self._thread.loop is not loop:
            raise RuntimeError(
                "this AsyncLLM serves the event loop of its first call and was called from "
                "another: make one AsyncLLM a loop"
            )
        return loop

    if not TYPE_CHECKING:

        def __getattr__(self, name):
            raise missing_attribute("AsyncLLM", name)
