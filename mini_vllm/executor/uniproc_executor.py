"""Runs the worker in this process: at once, or one call after the other in a thread of its own.

Mirrors `vllm/v1/executor/uniproc_executor.py:45 UniProcExecutor`. A GPU computes while the core goes on
by itself, since starting a kernel returns at once; there a thread only waits for the tokens to be
copied. A CPU computes where it is called. So here a thread does it, one only, because calls must be
carried out in their order; numpy lets go of the interpreter in its matrix products, and the core plans
meanwhile.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

from mini_vllm.executor.abstract import ExecuteFuture, Executor
from mini_vllm.worker.model_runner import ModelRunner

_Job = tuple[ExecuteFuture, Callable[..., Any], tuple[Any, ...]]


class UniProcExecutor(Executor):
    """Runs a model runner in this process.

    Args:
        model_runner: what computes.
        max_concurrent_batches: plans that the core may hand over before it asks for a result.
    """

    def __init__(self, model_runner: ModelRunner, max_concurrent_batches: int = 1) -> None:
        self.model_runner = model_runner
        self.max_concurrent_batches = max_concurrent_batches
        self._jobs: SimpleQueue[_Job | None] | None = None

    def collective_rpc(
        self,
        method: str,
        args: tuple[Any, ...] = (),
        non_block: bool = False,
        single_value: bool = False,
    ) -> Any:
        """As `Executor.collective_rpc`; there is one worker."""
        call = getattr(self.model_runner, method)
        if not non_block:
            answer = call(*args)
            return answer if single_value else [answer]
        if self._jobs is None:
            self._jobs = SimpleQueue()
            # A daemon, as the engine's own thread is: a step that hangs keeps no process alive.
            threading.Thread(
                target=_work, args=(self._jobs,), name="mini-vllm-worker", daemon=True
            ).start()
            weakref.finalize(self, self._jobs.put, None)
        future = ExecuteFuture()
        self._jobs.put((future, call if single_value else lambda *a: [call(*a)], args))
        return future


def _work(jobs: SimpleQueue[_Job | None]) -> None:
    """The thread. It holds no executor, so that one which is no longer used can go."""
    while (job := jobs.get()) is not None:
        future, call, args = job
        start = time.perf_counter()
        try:
            answer = call(*args)
        except BaseException as error:
            future.set_exception(error)
        else:
            future.execute_time = time.perf_counter() - start
            future.set_result(answer)
        del job, future, call, args  # not to outlive the engine in here
