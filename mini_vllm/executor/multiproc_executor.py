"""Runs a worker in a process for each rank, and has all of them take every step.

Mirrors `vllm/v1/executor/multiproc_executor.py:102 MultiprocExecutor`. A call goes to all ranks, in one
order; one of them answers. Upstream calls go out through one queue in shared memory, here through a pipe a
rank.

A rank that dies takes the engine with it: its shards are gone, and the others would wait for it in their next
sum. So they are stopped too, and what waits for an answer gets an error that names the rank.

Left out: other machines, ranks on devices.
"""

from __future__ import annotations

import inspect
import multiprocessing
import signal
import threading
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from multiprocessing.reduction import ForkingPickler
from typing import Any

from mini_vllm.core.sched.output import ModelRunnerOutput, SchedulerOutput
from mini_vllm.distributed.communicator import RankDiedError
from mini_vllm.distributed.shm_communicator import allocate_shared_memory, stop_ranks
from mini_vllm.executor.abstract import ExecuteFuture, Executor
from mini_vllm.executor.worker_proc import MakeWorker, run_worker
from mini_vllm.worker.components import GrammarRows

SECONDS_TO_END = 1.0
"""What a rank gets to end by itself, when it is told to."""


class MultiprocExecutor(Executor):
    """Runs the ranks.

    Args:
        make_worker: called in each process, so it must be picklable.
        tensor_parallel_size: ranks of a stage.
        pipeline_parallel_size: stages.
        max_concurrent_batches: plans that the core may hand over before it asks for a result: as many as
            there are stages, or two with asynchronous scheduling
            (`vllm/v1/executor/multiproc_executor.py:475 MultiprocExecutor.max_concurrent_batches`).

    Attributes:
        output_rank: the one that answers where one answer is enough: the first of the last stage
            (`vllm/v1/executor/multiproc_executor.py:480 MultiprocExecutor._get_output_rank`).

    Raises what making a worker has raised, and RankDiedError where one died of it.
    """

    def __init__(
        self,
        make_worker: MakeWorker,
        tensor_parallel_size: int,
        pipeline_parallel_size: int = 1,
        max_concurrent_batches: int = 1,
    ) -> None:
        self.max_concurrent_batches = max_concurrent_batches
        self.output_rank = tensor_parallel_size * (pipeline_parallel_size - 1)
        self._tell_stages = pipeline_parallel_size > 1
        self._sampled: dict[str, list[int]] = {}  # what the first stages have not been told yet
        self._lock = threading.Lock()
        self._ranks = _Ranks(make_worker, tensor_parallel_size, pipeline_parallel_size)
        self._end = weakref.finalize(self, self._ranks.end)

    @property
    def pids(self) -> list[int]:
        """The ranks' processes."""
        return [process.pid or 0 for process in self._ranks.processes]

    def collective_rpc(
        self,
        method: str,
        args: tuple[Any, ...] = (),
        non_block: bool = False,
        single_value: bool = False,
    ) -> Any:
        """As `Executor.collective_rpc`. Raises, or the future does, what a rank has raised, and RankDiedError
        where one is gone."""
        ranks = [self.output_rank] if single_value else range(len(self._ranks.processes))
        futures = self._ranks.call(method, args, ranks)
        future = futures[0] if single_value else _Together(futures)
        return future if non_block else future.result()

    def execute_model(self, scheduler_output: SchedulerOutput, non_block: bool = False) -> Any:
        """As `Executor.execute_model`. The first stages learn here what the last has sampled."""
        args: tuple[Any, ...] = (scheduler_output,)
        if self._tell_stages:
            with self._lock:
                sampled, self._sampled = self._sampled, {}
            args = (scheduler_output, sampled)
        return self.collective_rpc("execute_model", args, non_block, True)

    def sample_tokens(
        self, grammar_output: GrammarRows | None = None, non_block: bool = False
    ) -> Any:
        """As `Executor.sample_tokens`."""
        note = self._note_sampled if self._tell_stages else None
        (future,) = self._ranks.call("sample_tokens", (grammar_output,), [self.output_rank], note)
        return future if non_block else future.result()

    def _note_sampled(self, output: ModelRunnerOutput) -> None:
        with self._lock:
            self._sampled.update(zip(output.req_ids, output.sampled_token_ids, strict=True))

    def register_failure_callback(self, callback: Callable[[BaseException], None]) -> None:
        """As `Executor.register_failure_callback`. Holds a method's object weakly: it holds this executor."""
        self._ranks.register(callback)

    def shutdown(self) -> None:
        """End all ranks. Nothing is left of them when it returns."""
        self._end()


class _Answer(ExecuteFuture):
    """A rank's answer. `note` is told of it before the caller that waits."""

    note: Callable[[Any], None] | None = None


class _Together(ExecuteFuture):
    """The answers of several ranks, in their order, when the last is there."""

    def __init__(self, futures: list[_Answer]) -> None:
        super().__init__()
        self._futures = futures

    def result(self, timeout: float | None = None) -> list[Any]:
        return [future.result(timeout) for future in self._futures]


class _Ranks:
    """The processes, and what they have been asked. Knows no executor, so that one which is no longer used
    can go."""

    def __init__(self, make_worker: MakeWorker, tensor_size: int, stages: int) -> None:
        # Spawned: a fork would inherit threads' locks without the threads.
        context = multiprocessing.get_context("spawn")
        world_size = tensor_size * stages
        self.memories = [allocate_shared_memory(context, tensor_size) for _ in range(stages)]
        # From rank to the same rank of the stage behind.
        links = [context.Pipe(duplex=False) for _ in range(world_size - tensor_size)]
        self.error: BaseException | None = None
        self._ending = False
        self._callbacks: list[Callable[[], Callable[[BaseException], None] | None]] = []
        self._lock = threading.Lock()
        self._pipes: list[Connection] = []
        self.processes: list[BaseProcess] = []
        self._asked: list[deque[_Answer]] = [deque() for _ in range(world_size)]
        started = [_Answer() for _ in range(world_size)]
        try:
            for rank in range(world_size):
                mine, theirs = context.Pipe()
                process = context.Process(
                    target=run_worker,
                    args=(
                        make_worker,
                        rank,
                        (tensor_size, stages),
                        self.memories[rank // tensor_size],
                        (
                            links[rank - tensor_size][0] if rank >= tensor_size else None,
                            links[rank][1] if rank < len(links) else None,
                        ),
                        theirs,
                    ),
                    name=f"mini-vllm-rank-{rank}",
                    daemon=True,
                )
                process.start()
                theirs.close()
                self._pipes.append(mine)
                self.processes.append(process)
                self._asked[rank].append(started[rank])
        except BaseException:
            self._kill()
            raise
        finally:
            for link in links:
                for end in link:
                    end.close()
        self._thread = threading.Thread(target=self._listen, name="mini-vllm-ranks", daemon=True)
        self._thread.start()
        try:
            for future in started:
                future.result()
        except BaseException:
            self.end()
            raise

    def register(self, callback: Callable[[BaseException], None]) -> None:
        weak: Callable[[], Callable[[BaseException], None] | None]
        weak = weakref.WeakMethod(callback) if inspect.ismethod(callback) else lambda: callback
        with self._lock:
            self._callbacks.append(weak)

    def call(
        self,
        method: str,
        args: tuple[Any, ...],
        answering: Sequence[int],
        note: Callable[[Any], None] | None = None,
    ) -> list[_Answer]:
        """Ask all ranks; a future for each of those that are to answer."""
        answers = bytes(ForkingPickler.dumps((method, args, True)))
        silent = bytes(ForkingPickler.dumps((method, args, False)))
        futures: list[_Answer] = []
        with self._lock:
            if self.error is not None:
                raise self.error
            for rank, pipe in enumerate(self._pipes):
                if rank in answering:
                    futures.append(_Answer())
                    futures[-1].note = note
                    self._asked[rank].append(futures[-1])
                with suppress(OSError):  # where it is gone, `_listen` will say so
                    pipe.send_bytes(answers if rank in answering else silent)
        return futures

    def _listen(self) -> None:
        """Take in answers, until a rank ends."""
        ranks = {pipe: rank for rank, pipe in enumerate(self._pipes)}
        while True:
            for pipe in wait(list(ranks)):
                assert isinstance(pipe, Connection)
                rank = ranks[pipe]
                try:
                    error, result, seconds = pipe.recv()
                except (EOFError, OSError):
                    self._fail(rank, None)
                    return
                except Exception as unreadable:  # an answer that cannot be unpickled here
                    self._fail(rank, unreadable)
                    return
                if error is not None:
                    self._fail(rank, error)
                    return
                future = self._asked[rank].popleft()
                future.execute_time = seconds
                if future.note is not None:
                    future.note(result)
                future.set_result(result)

    def _fail(self, rank: int, error: BaseException | None) -> None:
        """A rank has raised `error`, or ended without a word: stop the others, and tell who waits."""
        process = self.processes[rank]
        if error is None and not self._ending:
            process.join(SECONDS_TO_END)
            error = RankDiedError(
                f"rank {rank} (process {process.pid}) {describe_exit(process.exitcode)}"
            )
        self._kill()  # first: a call may hold the lock while it sends to a rank that no longer reads
        with self._lock:
            self.error = error or RankDiedError("the ranks were ended")
            callbacks, self._callbacks = self._callbacks, []
        for asked in self._asked:
            while asked:
                asked.popleft().set_exception(self.error)
        if not self._ending:
            for weak in callbacks:
                if (callback := weak()) is not None:
                    callback(self.error)

    def _kill(self) -> None:
        for memory in self.memories:
            stop_ranks(memory)
        for pipe, process in zip(self._pipes, self.processes, strict=True):
            if not self._ending:
                process.kill()
                continue
            with suppress(OSError):
                pipe.send(None)
        for process in self.processes:
            process.join(SECONDS_TO_END)
            if process.exitcode is None:
                process.kill()
                process.join()

    def end(self) -> None:
        """Let the ranks end by themselves, or end them."""
        self._ending = True
        self._kill()
        if threading.current_thread() is not self._thread:
            self._thread.join()
        for pipe in self._pipes:
            pipe.close()


def describe_exit(exitcode: int | None) -> str:
    """How a process ended, as the end of a sentence."""
    if exitcode is None:
        return "does not answer"
    if exitcode < 0:
        return f"was ended by signal {-exitcode} ({signal.Signals(-exitcode).name})"
    return (
        f"ended with exit code {exitcode}. If that was at its start: a script that makes an engine of "
        "several ranks must do so under `if __name__ == '__main__':`, since each rank's process imports it"
    )
