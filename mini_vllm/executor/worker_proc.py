"""The process of a rank: it makes a worker, and calls on it what the executor asks for, until that is gone.

Mirrors `vllm/v1/executor/multiproc_executor.py:539 WorkerProc`.
"""

from __future__ import annotations

import os
import pickle
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

from mini_vllm.distributed.parallel_state import Pipeline, RankGroups, get_place
from mini_vllm.distributed.shm_communicator import SharedMemoryCommunicator
from mini_vllm.utils.threads import count_cores, limit_threads

MakeWorker = Callable[[RankGroups], Any]
"""Makes a rank's worker, in the process of that rank."""


def run_worker(
    make_worker: MakeWorker,
    rank: int,
    sizes: tuple[int, int],
    memory: Any,
    neighbours: tuple[Connection | None, Connection | None],
    pipe: Connection,
) -> None:
    """The process's main function. Its first answer says whether the worker could be made.

    Args:
        sizes: ranks of a stage, and stages.
        memory: what the ranks of its stage share.
        neighbours: pipes from the stage before and to the one behind.
        pipe: calls come in as (method, arguments, whether to answer), None ends the process. Answers are
            (error or None, result, seconds that it took); an error is always sent.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # an interrupt is the executor's to act on
    tensor_size, stages = sizes
    limit_threads(max(1, count_cores() // (tensor_size * stages)))
    stage, place = get_place(rank, tensor_size)
    tensor = SharedMemoryCommunicator(place, tensor_size, memory)
    groups = RankGroups(rank, tensor, Pipeline(stage, stages, *neighbours, tensor))
    try:
        worker = make_worker(groups)
        pipe.send((None, os.getpid(), 0.0))
    except BaseException as error:
        _answer(pipe, error, None, 0.0)
        return
    while True:
        try:
            call = pipe.recv()
        except (EOFError, OSError):
            return  # the executor is gone
        if call is None:
            return
        method, args, wants_answer = call
        start = time.perf_counter()
        try:
            result = getattr(worker, method)(*args)
        except BaseException as error:
            _answer(pipe, error, None, 0.0)
            return  # what it holds is no longer sound
        if wants_answer:
            _answer(pipe, None, result, time.perf_counter() - start)


def _answer(pipe: Connection, error: BaseException | None, result: Any, seconds: float) -> None:
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # an exception whose constructor asks for more than its text
        error = RuntimeError(repr(error))
    with suppress(OSError):  # the executor is gone
        pipe.send((error, result, seconds))
