"""Carries plans out: at once, or one after the other in a thread of its own.

Mirrors `vllm/v1/executor/uniproc_executor.py:45 UniProcExecutor`. A GPU computes while the core goes on
by itself, since starting a kernel returns at once; there a thread only waits for the tokens to be
copied. A CPU computes where it is called. So here a thread does it, one only, because plans must be
carried out in their order; numpy lets go of the interpreter in its matrix products, and the core plans
meanwhile.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue

from mini_vllm.core.sched.output import ModelRunnerOutput, SchedulerOutput
from mini_vllm.worker.model_runner import ModelRunner


class ExecuteFuture(Future[ModelRunnerOutput]):
    """A result on its way. `execute_time`: seconds that it took to compute, once it is there."""

    execute_time = 0.0


_Job = tuple[ExecuteFuture, Callable[[SchedulerOutput], ModelRunnerOutput], SchedulerOutput]


class UniProcExecutor:
    """Runs a model runner in this process.

    Args:
        model_runner: who computes.
        max_concurrent_batches: plans that the core may hand over before it asks for a result.
    """

    def __init__(self, model_runner: ModelRunner, max_concurrent_batches: int) -> None:
        self.model_runner = model_runner
        self.max_concurrent_batches = max_concurrent_batches
        self._jobs: SimpleQueue[_Job | None] | None = None

    def execute_model(self, scheduler_output: SchedulerOutput, future: ExecuteFuture) -> None:
        """Hand a plan over; returns before it is carried out. `future` gets the result, or the error."""
        if self._jobs is None:
            self._jobs = SimpleQueue()
            # A daemon, as the engine's own thread is: a step that hangs keeps no process alive.
            threading.Thread(
                target=_work, args=(self._jobs,), name="mini-vllm-worker", daemon=True
            ).start()
            weakref.finalize(self, self._jobs.put, None)
        self._jobs.put((future, self.model_runner.execute_model, scheduler_output))


def _work(jobs: SimpleQueue[_Job | None]) -> None:
    """The thread. It holds no executor, so that one which nobody needs any more can go."""
    while (job := jobs.get()) is not None:
        future, execute_model, scheduler_output = job
        start = time.perf_counter()
        try:
            output = execute_model(scheduler_output)
        except BaseException as error:
            future.set_exception(error)
        else:
            future.execute_time = time.perf_counter() - start
            future.set_result(output)
        del job, future, execute_model, scheduler_output  # not to outlive the engine in here
